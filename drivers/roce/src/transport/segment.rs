//! What a request packet asks for, by its operation, and why it may be refused.

use super::access::Denied;
use crate::wire::{NakCode, Operation};
use verbs::Status;

/// Why a request is refused for good: what the peer is told, and how the receive that it used ends.
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

/// What a request asks for, by operation.
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
