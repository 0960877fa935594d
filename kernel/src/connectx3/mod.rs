//! ConnectX-3 cards: which this machine has, and bringing one up as its RNIC.

mod hardware;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;
use mlx4::{Config, Mlx4};
use platform::Instant;
use verbs::{PortState, Rnic};

use crate::arch::interrupts;
use crate::pci::{self, Address, Function, Message, MsixTable};
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
/// How long a link may take to come up: switches and cables take seconds.
const LINK_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks at a link.
const LOOK: Duration = Duration::from_millis(1);
/// Requests taken while the link is waited for: events only.
const EVENTS: usize = 64;

/// Why there is no card to be used.
pub enum NoCard {
    /// There is none.
    Absent,
    /// It does not come up.
    Fails(Address, String),
}

impl fmt::Display for NoCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("this machine has no ConnectX-3"),
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

/// Brings the first card on the bus up, until its link is.
pub async fn start() -> Result<Arc<Card>, NoCard> {
    let found = pci::functions().into_iter().filter(|f| f.id.0 == VENDOR);
    let found = found.filter(|f| f.id.1 == VIRTUAL || PHYSICAL.contains(&f.id.1));
    // A physical function before a virtual one, and otherwise in the order of the bus.
    let Some(function) = found.min_by_key(|f| f.id.1 == VIRTUAL) else {
        return Err(NoCard::Absent);
    };
    let (card, times) = bring_up(&function).await.map_err(|why| NoCard::Fails(function.address, why))?;
    pci::claim(function.address, "mlx4");
    let identity = card.identity();
    log::info!(
        "rnic mlx4: {} at pci {}, board {}, firmware {}, port {} {} active, {} KiB of tables",
        function.name(),
        function.address,
        identity.board,
        identity.firmware,
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
    Ok(Arc::new(card))
}

async fn bring_up(function: &Function) -> Result<(Card, Times), String> {
    let begun = time::now();
    let slot = Slot::new(function.clone()).map_err(|e| format!("{e}"))?;
    let config = Config { vector: ENTRY, ..Config::default() };
    let card = Mlx4::start(slot, &config).map_err(|e| format!("{e}"))?;
    let up = time::now();
    // Not before, for the reset that it begins with turns messages off.
    let irq = interrupts::allocate("mlx4", Box::new(|| ())).map_err(|_| "no interrupt vector is left")?;
    let mut messages = MsixTable::enable(function).map_err(|e| format!("{e}"))?;
    messages.set(ENTRY, Message { address: irq.msi_address, data: irq.msi_data });
    let deadline = time::now() + LINK_LIMIT;
    while card.attributes().port_state != PortState::Active {
        if time::now() >= deadline {
            return Err(format!("its port has no link after {} s", LINK_LIMIT.as_secs()));
        }
        exec::sleep(LOOK).await;
        card.progress(time::now(), EVENTS);
    }
    Ok((card, Times { begun, up, linked: time::now() }))
}
