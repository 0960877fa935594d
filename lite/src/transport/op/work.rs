//! A work request to post, and the reasons for which it is not posted.

use super::validity::StampId;
use crate::base::qos::Share;
use crate::base::wait::{Epoch, Gate, Shut};

/// The longest payload that is assembled on the stack for an inline work request, in bytes.
pub(crate) const MAX_INLINE: usize = 256;

/// The operation to post.
#[derive(Clone, Copy)]
pub(crate) enum Verb<'a> {
    /// Writes `head`, then `tail`.
    Write { head: &'a [u8], tail: &'a [u8], imm: Option<u32> },
    /// Reads `len` bytes.
    Read { len: u32 },
    /// Adds.
    FetchAdd { add: u64 },
    /// Compares and swaps.
    CompareSwap { compare: u64, swap: u64 },
}

impl Verb<'_> {
    /// Returns true if the operation changes the peer's memory.
    #[inline]
    pub(crate) const fn changes(self) -> bool {
        !matches!(self, Self::Read { .. })
    }
}

/// The right to access a location through a mapping, as looked up.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    /// The gate of the mapping, and the epoch in which the location was looked up.
    pub(crate) seen: (&'a Gate, Epoch),
    /// The number of the mapping.
    pub(crate) stamp: StampId,
    /// The queue pairs that may be used.
    pub(crate) share: Share,
}

impl Access<'_> {
    /// Fails if the mapping has changed since. Must be called under the lock of the operation table: a task
    /// that changes a mapping then finds the operations posted before under this lock.
    pub(crate) fn check(&self) -> Result<(), NotPosted> {
        let (gate, epoch) = self.seen;
        gate.check(epoch).map_err(NotPosted::from)
    }

    /// Returns the effect of `verb` on the mapping.
    pub(crate) fn touch(&self, verb: Verb<'_>) -> Effect {
        Effect { stamp: self.stamp, changes: verb.changes() }
    }
}

/// The effect of an operation at the peer.
#[derive(Clone, Copy)]
pub(crate) struct Effect {
    /// The mapping that the operation goes through, which is not drained while the operation is on the
    /// wire.
    pub(crate) stamp: StampId,
    /// True if the operation changes the mapping's memory.
    pub(crate) changes: bool,
}

impl Effect {
    /// The effect of an operation that goes through no mapping: a message, or an access to memory that is
    /// lent for a call.
    pub(crate) const NOTHING: Self = Self { stamp: StampId::NONE, changes: false };
}

/// The reason for which nothing was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotPosted {
    /// No slot, buffer or room in the queue pair is free now, or this node is suspended.
    Busy,
    /// The connection has ended.
    ConnectionLost,
    /// The mapping has been revoked.
    Revoked,
    /// The mapping is being changed, or has been since the lookup: look up again.
    Changed,
    /// The request is longer than a bounce buffer, or its memory cannot be accessed.
    Invalid,
}

impl From<Shut> for NotPosted {
    fn from(shut: Shut) -> Self {
        match shut {
            Shut::Closed => Self::Revoked,
            Shut::Changed => Self::Changed,
        }
    }
}
