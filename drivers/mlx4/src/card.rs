//! The properties of a card that is up, and its health.

use crate::bringup::capabilities::{BoardId, Capabilities};
use crate::bringup::firmware::Version;
use crate::config::{FramePort, Layer};
use crate::error::Error;
use crate::objects::mr::Keys;
use crate::objects::port::{Port, PortInfo};
use platform::Instant;
use verbs::MacAddr;

/// The kind of a card's PCI function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Function {
    /// The physical function: the card itself.
    Physical,
    /// A virtual function: a part of the card, served by the driver of the physical function.
    Virtual,
}

/// The identity of a card, for an inventory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The function of the card that this driver drives.
    pub function: Function,
    /// The version of the firmware.
    pub firmware: Version,
    /// The model of the card.
    pub board: BoardId,
    /// The number of the port in use, from 1.
    pub port: u8,
    /// The Ethernet address of the port that the driver uses.
    pub mac: MacAddr,
}

/// A port of a card, for an inventory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CardPort {
    /// The port's number, from 1.
    pub number: u8,
    /// The port's layer: the present one, or the preferred one if the port supports both.
    pub layer: Layer,
    /// The port's Ethernet address; zero on InfiniBand.
    pub mac: MacAddr,
    /// True if the port has a link.
    pub link: bool,
}

/// The health of a card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// The card works.
    Ok,
    /// The card has failed and is being recovered. The owner must call
    /// [`Mlx4::recover`](crate::Mlx4::recover) at `next`.
    Recovering {
        /// The time of the next step.
        next: Instant,
    },
    /// The maximum number of recoveries in a row has failed. The driver has given the card up.
    Lost {
        /// The error of the last attempt.
        error: Error,
    },
}

/// The indicator of a card's failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HealthSource {
    /// No indicator: the driver cannot see a failure.
    Unseen,
    /// A register of BAR 0, which is not 0 once the card has failed.
    Register(u32),
    /// The master's last reply on the channel.
    Channel,
}

/// A port in use, and the card's description of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attached {
    pub(crate) port: Port,
    pub(crate) info: PortInfo,
}

/// The properties of a card that is up.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub(crate) function: Function,
    /// The time at which the card's reset ended, if it was reset.
    pub(crate) reset: Option<Instant>,
    pub(crate) firmware: Version,
    pub(crate) board: BoardId,
    pub(crate) capabilities: Capabilities,
    /// The port of RDMA.
    pub(crate) port: Port,
    pub(crate) info: PortInfo,
    /// The port of plain frames alone, if there is one.
    pub(crate) second: Option<Attached>,
    pub(crate) keys: Keys,
    pub(crate) health: HealthSource,
    /// The maximum number of queue pairs.
    pub(crate) max_qps: u32,
    /// True if BlueFlame is in use: work requests are written together with their doorbells, where a queue
    /// has a register for it.
    pub(crate) blue_flame: bool,
    /// The protection domain of all queue pairs and keys.
    pub(crate) domain: u32,
}

impl Card {
    /// Returns a port, if it is in use.
    pub(crate) fn attached(&self, which: FramePort) -> Option<Attached> {
        match which {
            FramePort::Rdma => Some(Attached { port: self.port, info: self.info }),
            FramePort::Second => self.second,
        }
    }

    /// Returns the ports in use.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = Attached> {
        FramePort::ALL.into_iter().filter_map(|which| self.attached(which))
    }

    /// Returns the identity of the card.
    pub(crate) const fn identity(&self) -> Identity {
        let Self { function, firmware, board, port, info, .. } = self;
        Identity { function: *function, firmware: *firmware, board: *board, port: port.number, mac: info.mac }
    }
}
