//! The errors of the driver.

use crate::command::{Opcode, Status};
use verbs::VerbsError;

/// The reason for which a card does not come up, or a command fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// All registers of the card read as ones: the card is absent.
    #[error("the card does not answer")]
    Gone,
    /// Another driver holds the card's semaphore.
    #[error("another driver owns the card")]
    Owned,
    /// A virtual function whose physical function has no driver that serves it.
    #[error("no driver of the physical function answers")]
    NoMaster,
    /// A virtual function whose master has released everything that the function had.
    #[error("the driver of the physical function has given this one up")]
    GivenUp,
    /// A tool that accesses the card's flash keeps it from being reset.
    #[error("the card is locked against a reset")]
    ResetLocked,
    /// The card has not come back from a reset.
    #[error("the card has not come back from its reset")]
    ResetTimeout,
    /// The card has refused a command.
    #[error("{command:?}: {status}")]
    Refused {
        /// The command.
        command: Opcode,
        /// The card's reason.
        status: Status,
    },
    /// The card has not completed a command, and receives no others.
    #[error("{0:?} has not ended in time")]
    CommandTimeout(Opcode),
    /// The card has failed, and is unusable until it is reset.
    #[error("the card has failed")]
    Failed,
    /// The card has reported an impossible value.
    #[error("the card reports something impossible: {0}")]
    Nonsense(&'static str),
    /// The card lacks a capability that the driver needs.
    #[error("the card does not have {0}")]
    Lacks(&'static str),
    /// The card does not have the requested port.
    #[error("the card has {has} {}, and no port {asked}", if *has == 1 { "port" } else { "ports" })]
    NoPort {
        /// The requested port, from 1.
        asked: u8,
        /// The number of ports.
        has: u8,
    },
    /// The machine has no contiguous memory for an object.
    #[error("no contiguous memory for {0}")]
    NoMemory(&'static str),
    /// A table of the card is full.
    #[error("no {0} left")]
    Exhausted(&'static str),
}

impl From<Error> for VerbsError {
    fn from(error: Error) -> Self {
        match error {
            Error::NoMemory(_) | Error::Exhausted(_) => Self::NoResources,
            Error::Lacks(_) | Error::NoPort { .. } => Self::Unsupported,
            Error::Refused { status: Status::ExceedsLimit, .. } => Self::NoResources,
            Error::Refused { status: Status::BadQpState, .. } => Self::InvalidState,
            Error::Refused { status: Status::BadParameter, .. } => Self::InvalidArgument,
            _ => Self::DeviceFailed,
        }
    }
}
