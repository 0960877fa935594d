//! ConnectX-3 cards: finds those of this machine, brings one up as its RNIC, and restarts it after a failure.

mod hardware;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;
use mlx4::{CardPort, Config, Health, Identity, Layer, Mlx4, Remote, Vlan};
use platform::Instant;
use verbs::{PortState, Rnic};

use crate::arch::interrupts;
use crate::machine::{self, RemoteAccess};
use crate::mm::lent;
use crate::pci::{self, Address, Function, Message, MsixError, MsixTable};
use crate::sync::IrqRawMutex;
use crate::{exec, time};
use hardware::PciCard;

/// A running card.
pub(crate) type Card = Mlx4<PciCard, IrqRawMutex>;

const VENDOR: u16 = 0x15b3;
/// PCI device ids of ConnectX-3 and ConnectX-3 Pro.
const PHYSICAL: [u16; 2] = [0x1003, 0x1007];
/// The PCI device id of a virtual function of a ConnectX-3 or ConnectX-3 Pro.
const VIRTUAL: u16 = 0x1004;

/// The MSI-X table entry by which the card interrupts.
const ENTRY: u16 = 0;
/// The time after which the console says that there is no link, and the longest until it says so again.
/// Cables take seconds, a subnet manager or the spanning tree of a switch up to half a minute.
const LINK_SAID: Duration = Duration::from_secs(5);
const LINK_SAID_AGAIN: Duration = Duration::from_secs(60);
/// The interval at which the link is checked.
const LINK_INTERVAL: Duration = Duration::from_millis(1);
/// The interval at which the card's health is checked, and the longest between two steps of a recovery.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);
/// Entries that are polled at a time while the card waits for its link. They are events only.
const EVENTS: usize = 64;

/// The wanted card and port.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Choice {
    /// The card's address. `None` selects the first on the bus, a physical function before a virtual one.
    pub address: Option<Address>,
    /// The port, from 1. `None` selects the first.
    pub port: Option<u8>,
    /// The layer of a port that supports both. `None` selects the one that the card suggests.
    pub layer: Option<Layer>,
}

/// The properties of a card's network.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    /// The longest time for a link to come up; `None` is for ever.
    pub link_within: Option<Duration>,
    /// The largest IP packet on Ethernet, in bytes.
    pub mtu: u16,
    /// The VLAN on Ethernet.
    pub vlan: Option<Vlan>,
    /// The number of the partition on InfiniBand.
    pub partition: Option<u16>,
    /// The number of the port for the management network, from 1, if that is a port of the card.
    pub management: Option<u8>,
}

/// The reason for which no card can be used.
pub(crate) enum NoCard {
    /// The machine has no card.
    Absent,
    /// The wanted address has no card; the list contains the machine's cards.
    Elsewhere(Address, Vec<Function>),
    /// The card at this address does not start, for the given reason.
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

/// The times at which the start began, the card was up, and its link was up.
struct Times {
    begun: Instant,
    up: Instant,
    linked: Instant,
}

/// A running card and its interrupt message.
#[derive(Clone)]
pub(crate) struct DrivenCard {
    pub card: Arc<Card>,
    function: Function,
    message: Message,
}

impl DrivenCard {
    /// Returns the card's address on the bus.
    pub(crate) fn address(&self) -> Address {
        self.function.address
    }

    /// Restarts the card whenever it has failed. Ends with the reason if the card cannot be used any more: it
    /// is lost, or its key has changed, and no other node knows the new key.
    pub(crate) async fn watch(self) -> String {
        let key = self.card.memory_key();
        loop {
            exec::sleep(HEALTH_INTERVAL).await;
            let began = time::now();
            let mut next = match self.card.recover(began) {
                Health::Ok => continue,
                Health::Recovering { next } => next,
                Health::Lost { error } => return self.lost(&error),
            };
            loop {
                exec::sleep_until(next.min(time::now() + HEALTH_INTERVAL)).await;
                match self.card.recover(time::now()) {
                    Health::Ok => break,
                    Health::Recovering { next: later } => next = later,
                    Health::Lost { error } => return self.lost(&error),
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
            log::info!("rnic mlx4: the card at pci {} has recovered after {ms} ms", self.function.address);
        }
    }

    fn lost(&self, why: &dyn fmt::Display) -> String {
        format!("the ConnectX-3 at pci {} is lost: {why}", self.function.address)
    }
}

/// Brings a card and its link up, and prints a description of all cards.
pub(crate) async fn start(choice: Choice, network: Network) -> Result<DrivenCard, NoCard> {
    let mut cards: Vec<Function> = pci::functions().into_iter().filter(is_card).collect();
    // Physical functions come before virtual ones, otherwise in the order of the bus.
    cards.sort_by_key(|card| card.id.1 == VIRTUAL);
    let index = match choice.address {
        _ if cards.is_empty() => return Err(NoCard::Absent),
        Some(address) => cards.iter().position(|card| card.address == address),
        None => Some(0),
    };
    let function = match (index, choice.address) {
        (Some(index), _) => cards.remove(index),
        (None, Some(address)) => return Err(NoCard::Elsewhere(address, cards)),
        (None, None) => return Err(NoCard::Absent),
    };
    let brought_up = bring_up(&function, choice, network).await;
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
    let second = network.management.filter(|number| *number != identity.port);
    if let Some(number) = second {
        log::info!("  port {number} is used for the management network");
    }
    print_other_ports(&card, &[Some(identity.port), second]);
    for other in cards {
        print_unused(&other);
    }
    Ok(DrivenCard { card: Arc::new(card), function, message })
}

fn is_card(function: &Function) -> bool {
    let (vendor, device) = function.id;
    vendor == VENDOR && (device == VIRTUAL || PHYSICAL.contains(&device))
}

/// The description of a card.
struct Name<'a>(&'a Function, &'a Identity);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(function, identity) = self;
        let (name, address) = (function.name(), function.address);
        write!(f, "{name} at pci {address}, board {}, firmware {}", identity.board, identity.firmware)
    }
}

/// Prints the ports of a card other than those in use.
fn print_other_ports(card: &Card, in_use: &[Option<u8>]) {
    match card.ports() {
        Ok(ports) => {
            for CardPort { number, layer, mac, link } in ports {
                let link = if link { "a link" } else { "no link" };
                if !in_use.contains(&Some(number)) {
                    log::info!("  port {number} is not used: {layer:?}, {mac}, {link}");
                }
            }
        }
        Err(why) => log::warn!("rnic mlx4: cannot query the ports: {why}"),
    }
}

/// Prints the description of an unused card, which is brought up and shut down for this purpose.
fn print_unused(function: &Function) {
    let device = PciCard::new(function.clone()).map_err(|e| format!("{e}"));
    match device.and_then(|device| Card::start(device, &Config::default()).map_err(|e| e.to_string())) {
        Ok(card) => {
            log::info!("rnic mlx4: {}, not used", Name(function, &card.identity()));
            print_other_ports(&card, &[]);
        }
        Err(why) => log::warn!("rnic mlx4: {} at pci {}: {why}", function.name(), function.address),
    }
}

async fn bring_up(
    function: &Function,
    choice: Choice,
    network: Network,
) -> Result<(Card, Message, Times), String> {
    let begun = time::now();
    let device = PciCard::new(function.clone()).map_err(|e| format!("{e}"))?;
    let remote = match machine::remote_access() {
        RemoteAccess::Arena(arena) => {
            let (base, len) = arena.range();
            Remote::part(base, len)
        }
        RemoteAccess::Lendable => Remote::Ranges(lent::covered().ranges.as_slice().into()),
        RemoteAccess::Physical => Remote::Physical,
    };
    let (port, layer) = (choice.port.unwrap_or(1), choice.layer);
    let Network { mtu, vlan, partition, management, .. } = network;
    let second = management.filter(|number| *number != port);
    let config = Config { port, second, layer, remote, frames: true, mtu, vlan, partition, vector: ENTRY };
    let card = Mlx4::start(device, &config).map_err(|e| format!("{e}"))?;
    let up = time::now();
    // The vector is allocated after the reset, which turns messages off.
    let irq = interrupts::allocate("mlx4", Box::new(|| ())).map_err(|_| "no interrupt vector is left")?;
    let message = Message { address: irq.msi_address, data: irq.msi_data };
    turn_messages_on(function, message).map_err(|e| e.to_string())?;
    await_link(&card, network).await?;
    Ok((card, message, Times { begun, up, linked: time::now() }))
}

/// Waits until the port has a link, and says on the console if that takes long.
async fn await_link(card: &Card, network: Network) -> Result<(), String> {
    let Network { link_within: within, partition, .. } = network;
    let begun = time::now();
    let (mut say_at, mut pause) = (begun + LINK_SAID, LINK_SAID);
    while card.attributes().port_state != PortState::Active {
        let waited = time::now().saturating_since(begun);
        if within.is_some_and(|within| waited >= within) {
            return Err(format!("its port has no link after {} s", waited.as_secs()));
        }
        if time::now() >= say_at {
            let port = card.identity().port;
            // The driver tells a port without its partition as one without a link.
            let partition =
                partition.map_or_else(String::new, |number| format!(" or no partition {number:#x}"));
            log::warn!(
                "rnic mlx4: port {port} has no link{partition} after {} s, and is waited for",
                waited.as_secs()
            );
            pause = (pause * 2).min(LINK_SAID_AGAIN);
            say_at = time::now() + pause;
        }
        exec::sleep(LINK_INTERVAL).await;
        card.progress(time::now(), EVENTS);
    }
    Ok(())
}

/// Turns messages on again after a reset, which turns them off and clears their table.
fn turn_messages_on(function: &Function, message: Message) -> Result<(), MsixError> {
    MsixTable::enable(function).map(|mut table| table.set(ENTRY, message))
}
