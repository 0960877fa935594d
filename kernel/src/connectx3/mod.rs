//! ConnectX-3 cards: which this machine has, bringing one up as its RNIC, and again when it has failed.

mod hardware;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;
use mlx4::{CardPort, Condition, Config, Identity, Mlx4, Remote};
use platform::Instant;
use verbs::{PortState, Rnic};

use crate::arch::interrupts;
use crate::machine::{self, Reach};
use crate::mm::lent;
use crate::pci::{self, Address, Function, Message, MsixError, MsixTable};
use crate::sync::IrqRawMutex;
use crate::{exec, time};
use hardware::Slot;

/// A card that is up.
pub type Card = Mlx4<Slot, IrqRawMutex>;

const VENDOR: u16 = 0x15b3;
/// ConnectX-3 and ConnectX-3 Pro.
const PHYSICAL: [u16; 2] = [0x1003, 0x1007];
/// A virtual function of either.
const VIRTUAL: u16 = 0x1004;

/// The entry of the table of messages by which the card interrupts.
const ENTRY: u16 = 0;
/// How long a link may take to come up: cables take seconds, a subnet manager or the spanning tree of a switch up to half a
/// minute.
const LINK_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks at a link.
const LOOK: Duration = Duration::from_millis(1);
/// Between two looks whether a card has failed, and between two steps of its recovery at the longest.
const WATCH: Duration = Duration::from_secs(1);
/// Requests taken while the link is waited for: events only.
const EVENTS: usize = 64;

/// Which card is wanted, and which of its ports.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Choice {
    /// Where it is. `None`: the first on the bus, a physical function before a virtual one.
    pub address: Option<Address>,
    /// The port, from 1. `None`: the first.
    pub port: Option<u8>,
}

/// Why there is no card to be used.
pub enum NoCard {
    /// There is none.
    Absent,
    /// None is at the place wanted; those that there are.
    Elsewhere(Address, Vec<Function>),
    /// It does not come up.
    Fails(Address, String),
}

impl fmt::Display for NoCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("this machine has no ConnectX-3"),
            Self::Elsewhere(address, cards) => {
                write!(f, "no ConnectX-3 is at pci {address}; there is")?;
                for (n, card) in cards.iter().enumerate() {
                    write!(f, "{} {} ({})", if n == 0 { "" } else { "," }, card.address, card.name())?;
                }
                Ok(())
            }
            Self::Fails(address, why) => write!(f, "the ConnectX-3 at pci {address} does not start: {why}"),
        }
    }
}

/// When a card was begun with, was up, and had its link.
struct Times {
    begun: Instant,
    up: Instant,
    linked: Instant,
}

/// A card that is up, and how it interrupts.
#[derive(Clone)]
pub struct Driven {
    /// It.
    pub card: Arc<Card>,
    function: Function,
    message: Message,
}

impl Driven {
    /// Where it is on the bus.
    pub fn address(&self) -> Address {
        self.function.address
    }

    /// Brings the card up again whenever it has failed. Ends with the reason if it cannot be used any more: it is lost, or its
    /// key is another, which nobody in the cluster knows.
    pub async fn watch(self) -> String {
        let key = self.card.memory_key();
        loop {
            exec::sleep(WATCH).await;
            let began = time::now();
            let mut next = match self.card.mend(began) {
                Condition::Well => continue,
                Condition::Mending { next } => next,
                Condition::Lost { error } => return self.lost(&error),
            };
            loop {
                exec::sleep_until(next.min(time::now() + WATCH)).await;
                match self.card.mend(time::now()) {
                    Condition::Well => break,
                    Condition::Mending { next: later } => next = later,
                    Condition::Lost { error } => return self.lost(&error),
                }
            }
            if let Err(why) = turn_messages_on(&self.function, self.message) {
                return self.lost(&why);
            }
            if self.card.memory_key() != key {
                let address = self.function.address;
                return format!(
                    "the ConnectX-3 at pci {address} has another key since its reset: start the node again"
                );
            }
            let ms = time::now().saturating_since(began).as_millis();
            log::info!("rnic mlx4: the card at pci {} is well again after {ms} ms", self.function.address);
        }
    }

    fn lost(&self, why: &dyn fmt::Display) -> String {
        format!("the ConnectX-3 at pci {} is lost: {why}", self.function.address)
    }
}

/// Brings a card up, until its link is, and says what all cards are.
pub async fn start(choice: Choice) -> Result<Driven, NoCard> {
    let mut cards: Vec<Function> = pci::functions().into_iter().filter(is_card).collect();
    // Physical functions before virtual ones, and otherwise in the order of the bus.
    cards.sort_by_key(|card| card.id.1 == VIRTUAL);
    let place = match choice.address {
        _ if cards.is_empty() => return Err(NoCard::Absent),
        Some(address) => cards.iter().position(|card| card.address == address),
        None => Some(0),
    };
    let function = match (place, choice.address) {
        (Some(place), _) => cards.remove(place),
        (None, Some(address)) => return Err(NoCard::Elsewhere(address, cards)),
        (None, None) => return Err(NoCard::Absent),
    };
    let port = choice.port.unwrap_or(1);
    let brought_up = bring_up(&function, port).await;
    let (card, message, times) = brought_up.map_err(|why| NoCard::Fails(function.address, why))?;
    pci::claim(function.address, "mlx4");
    let identity = card.identity();
    log::info!(
        "rnic mlx4: {}, port {} {} active, {} KiB of tables",
        Name(&function, &identity),
        identity.port,
        identity.mac,
        card.table_bytes() >> 10,
    );
    let us = |from: Instant, to: Instant| to.saturating_since(from).as_micros();
    let Times { begun, up, linked } = times;
    let reset = card.reset_ended().unwrap_or(begun);
    log::info!(
        "rnic mlx4: reset {} us, brought up in {} us, link after {} us",
        us(begun, reset),
        us(reset, up),
        us(up, linked)
    );
    say_ports(&card, Some(identity.port));
    for other in cards {
        look_at(&other);
    }
    Ok(Driven { card: Arc::new(card), function, message })
}

fn is_card(function: &Function) -> bool {
    let (vendor, device) = function.id;
    vendor == VENDOR && (device == VIRTUAL || PHYSICAL.contains(&device))
}

/// What a card is.
struct Name<'a>(&'a Function, &'a Identity);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(function, identity) = self;
        let (name, address) = (function.name(), function.address);
        write!(f, "{name} at pci {address}, board {}, firmware {}", identity.board, identity.firmware)
    }
}

/// Says what ports a card has beside the one that is driven.
fn say_ports(card: &Card, driven: Option<u8>) {
    match card.ports() {
        Ok(ports) => {
            for CardPort { number, layer, mac, link } in ports {
                let link = if link { "a link" } else { "no link" };
                if Some(number) != driven {
                    log::info!("  port {number} is not used: {layer:?}, {mac}, {link}");
                }
            }
        }
        Err(why) => log::warn!("rnic mlx4: the ports are not known: {why}"),
    }
}

/// Says what a card is that nobody uses. It is brought up for that, and given up again.
fn look_at(function: &Function) {
    let slot = Slot::new(function.clone()).map_err(|e| format!("{e}"));
    match slot.and_then(|slot| Card::start(slot, &Config::default()).map_err(|e| e.to_string())) {
        Ok(card) => {
            log::info!("rnic mlx4: {}, not used", Name(function, &card.identity()));
            say_ports(&card, None);
        }
        Err(why) => log::warn!("rnic mlx4: {} at pci {}: {why}", function.name(), function.address),
    }
}

async fn bring_up(function: &Function, port: u8) -> Result<(Card, Message, Times), String> {
    let begun = time::now();
    let slot = Slot::new(function.clone()).map_err(|e| format!("{e}"))?;
    let remote = match machine::reach() {
        Reach::Arena(arena) => {
            let (base, len) = arena.range();
            Remote::part(base, len)
        }
        Reach::Lendable => Remote::Ranges(lent::covered().ranges.as_slice().into()),
        Reach::Physical => Remote::Physical,
    };
    let config = Config { port, remote, vector: ENTRY, frames: true, ..Config::default() };
    let card = Mlx4::start(slot, &config).map_err(|e| format!("{e}"))?;
    let up = time::now();
    // Not before, for the reset that it begins with turns messages off.
    let irq = interrupts::allocate("mlx4", Box::new(|| ())).map_err(|_| "no interrupt vector is left")?;
    let message = Message { address: irq.msi_address, data: irq.msi_data };
    turn_messages_on(function, message).map_err(|e| e.to_string())?;
    let deadline = time::now() + LINK_LIMIT;
    while card.attributes().port_state != PortState::Active {
        if time::now() >= deadline {
            return Err(format!("its port has no link after {} s", LINK_LIMIT.as_secs()));
        }
        exec::sleep(LOOK).await;
        card.progress(time::now(), EVENTS);
    }
    Ok((card, message, Times { begun, up, linked: time::now() }))
}

/// A reset turns them off, and empties their table.
fn turn_messages_on(function: &Function, message: Message) -> Result<(), MsixError> {
    MsixTable::enable(function).map(|mut table| table.set(ENTRY, message))
}
