//! The reasons why a work request fails before it starts.

use super::gather::Ungathered;
use super::wqe::Malformed;
use crate::device::memory::Refused;
use verbs::{Status, VerbsError};

/// The reason why a work request fails the queue pair before it starts.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unfit {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("FAST_REG of key {0:#x}: the queue pair does not belong to a kernel")]
    Forbidden(u32),
    #[error(transparent)]
    Ungathered(#[from] Ungathered),
    #[error("{0}")]
    Transport(#[from] VerbsError),
}

impl Unfit {
    pub(super) const fn status(&self) -> Status {
        match self {
            Self::Malformed(_) | Self::Forbidden(_) => Status::LocalQpOperationError,
            Self::Refused(_) => Status::LocalProtectionError,
            Self::Ungathered(e) => e.status(),
            Self::Transport(_) => Status::LocalLengthError,
        }
    }
}
