//! The kind of a request packet, by its operation, and the ways to refuse one.

use super::access::Denied;
use crate::wire::{NakCode, Operation};
use verbs::Status;

/// A fatal refusal: the code for the peer, and the status of the receive in use.
pub(super) struct Refusal {
    pub(super) code: NakCode,
    pub(super) recv: Option<Status>,
}

impl Refusal {
    pub(super) const INVALID: Self = Self { code: NakCode::InvalidRequest, recv: None };
    pub(super) const ACCESS: Self = Self { code: NakCode::RemoteAccessError, recv: None };
}

impl From<Denied> for Refusal {
    fn from(_: Denied) -> Self {
        Self::ACCESS
    }
}

/// The kind of a request packet.
pub(super) enum Segment {
    Send { starts: bool, ends: bool },
    Write { starts: bool, ends: bool },
    Read,
    Atomic,
}

impl Segment {
    pub(super) const fn of(operation: Operation) -> Option<Self> {
        use Operation as O;
        Some(match operation {
            O::SendFirst => Self::Send { starts: true, ends: false },
            O::SendMiddle => Self::Send { starts: false, ends: false },
            O::SendLast | O::SendLastImm | O::SendLastInvalidate => Self::Send { starts: false, ends: true },
            O::SendOnly | O::SendOnlyImm | O::SendOnlyInvalidate => Self::Send { starts: true, ends: true },
            O::WriteFirst => Self::Write { starts: true, ends: false },
            O::WriteMiddle => Self::Write { starts: false, ends: false },
            O::WriteLast | O::WriteLastImm => Self::Write { starts: false, ends: true },
            O::WriteOnly | O::WriteOnlyImm => Self::Write { starts: true, ends: true },
            O::ReadRequest => Self::Read,
            O::CompareSwap | O::FetchAdd => Self::Atomic,
            _ => return None,
        })
    }
}
