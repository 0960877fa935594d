//! Why a card does not come up, or a command fails.

use crate::command::{Opcode, Status};
use verbs::VerbsError;

/// Why a card does not come up, or a command fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// It reads as all ones, as a card that is not there.
    #[error("the card does not answer")]
    Gone,
    /// Another driver's semaphore is taken.
    #[error("another driver owns the card")]
    Owned,
    /// A virtual function whose physical function has no driver that serves it.
    #[error("no driver of the physical function answers")]
    NoMaster,
    /// A virtual function whose master has taken all from it.
    #[error("the driver of the physical function has given this one up")]
    GivenUp,
    /// A tool of its flash keeps it from being reset.
    #[error("the card is locked against a reset")]
    ResetLocked,
    /// It has not come back.
    #[error("the card has not come back from its reset")]
    ResetTimeout,
    /// It has refused a command.
    #[error("{command:?}: {status}")]
    Refused {
        /// The command.
        command: Opcode,
        /// Its reason.
        status: Status,
    },
    /// It has not ended a command. It is not asked again.
    #[error("{0:?} has not ended in time")]
    CommandTimeout(Opcode),
    /// It has failed, and does no more until it is reset.
    #[error("the card has failed")]
    Failed,
    /// What it says of itself cannot be.
    #[error("the card says what cannot be: {0}")]
    Nonsense(&'static str),
    /// It lacks something that the driver needs.
    #[error("the card does not have {0}")]
    Lacks(&'static str),
    /// A port that it does not have.
    #[error("the card has {has} {}, and no port {asked}", if *has == 1 { "port" } else { "ports" })]
    NoPort {
        /// That port, from 1.
        asked: u8,
        /// How many there are.
        has: u8,
    },
    /// The machine has no memory for it.
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
