//! Posting of one work request with all that it needs: a credit of the queue pair, a bounce buffer, a slot.

use super::{OpId, Touch, Waits};
use crate::bounce::Place;
use crate::conn::Conn;
use crate::node::Node;
use crate::qos::Share;
use crate::region::Mapping;
use crate::trace::{Event, Work};
use crate::wait::{Epoch, Shut};
use alloc::sync::Arc;
use proto::NodeId;
use verbs::{Payload, QpNum, RemoteAddr, SendOp, SendWr, Sge, VerbsError};

/// The longest payload that is assembled on the stack for an inline work request, in bytes.
const MAX_INLINE: usize = 256;

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
pub(crate) struct Pass<'a> {
    /// The mapping, and the epoch in which the location was looked up.
    pub(crate) seen: (&'a Mapping, Epoch),
    /// The queue pairs that may be used.
    pub(crate) share: Share,
}

impl Pass<'_> {
    /// Fails if the mapping has changed since. Must be called under the lock of the operation table: a task
    /// that changes a mapping then finds the operations posted before under this lock.
    pub(super) fn check(&self) -> Result<(), NotPosted> {
        let (mapping, epoch) = self.seen;
        mapping.gate.check(epoch).map_err(NotPosted::from)
    }

    /// Returns the effect of `verb` on the mapping.
    pub(super) fn touch(&self, verb: Verb<'_>) -> Touch {
        Touch { stamp: self.seen.0.stamp.id(), changes: verb.changes() }
    }
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
    /// No bounce buffer is that large, or the memory cannot be accessed.
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

impl Node {
    /// Posts `verb` on a queue pair of `conn`, with `pass` if it accesses a region. `detached`: no task
    /// will wait for it.
    pub(crate) fn try_post(
        &self,
        conn: &Arc<Conn>,
        lane: usize,
        verb: Verb<'_>,
        remote: RemoteAddr,
        pass: Option<Pass<'_>>,
        detached: bool,
    ) -> Result<OpId, NotPosted> {
        let Some(qp) = conn.lane(lane) else { return Err(NotPosted::Invalid) };
        if self.lease.is_suspended() && !conn.is_shut() {
            return Err(NotPosted::Busy);
        }
        let touch = pass.map_or(Touch::NOTHING, |p| p.touch(verb));
        let waits = if detached { Waits::Nobody } else { Waits::Task };
        let (id, place) = {
            let mut ops = self.ops.lock();
            pass.map_or(Ok(()), |p| p.check())?;
            let depth = self.config.send_depth;
            ops.take((conn, lane), touch, self.bounce_len(verb), depth, waits)?
        };
        self.trace(|| posted(id, verb, conn.peer, lane));
        self.submit(qp.number, (id, detached), place, verb, remote).map(|()| id)
    }

    /// Returns the length of the bounce buffer that `verb` needs, if it needs one.
    #[inline]
    pub(crate) fn bounce_len(&self, verb: Verb<'_>) -> Option<usize> {
        match verb {
            Verb::Write { head, tail, .. } => {
                let bytes = head.len() + tail.len();
                (bytes > self.max_inline.min(MAX_INLINE)).then_some(bytes)
            }
            Verb::Read { len } => Some(len as usize),
            Verb::FetchAdd { .. } | Verb::CompareSwap { .. } => Some(8),
        }
    }

    /// Posts an operation that has a slot, and a bounce buffer if it needs one. On `Err` the slot has been
    /// released. `detached`: no task will wait for it.
    #[inline(always)]
    pub(crate) fn submit(
        &self,
        qp: QpNum,
        (id, detached): (OpId, bool),
        place: Option<Place>,
        verb: Verb<'_>,
        remote: RemoteAddr,
    ) -> Result<(), NotPosted> {
        let mut buffer;
        let sge;
        let op = match (verb, place) {
            (Verb::Write { head, tail: [], imm }, None) => {
                SendOp::Write { data: Payload::Inline(head), remote, imm }
            }
            (Verb::Write { head, tail, imm }, None) => {
                buffer = [0u8; MAX_INLINE];
                let Some(bytes) = join(&mut buffer, head, tail) else { return Err(self.cancel(id)) };
                SendOp::Write { data: Payload::Inline(bytes), remote, imm }
            }
            (Verb::Write { head, tail, imm }, Some(place)) => {
                let (buffers, addr) = (&self.buffers, self.buffers.addr(place));
                sge = [Sge { addr, len: (head.len() + tail.len()) as u32 }];
                let is_filled = buffers.write(place, 0, head).is_ok()
                    && (tail.is_empty() || buffers.write(place, head.len(), tail).is_ok());
                if !is_filled {
                    return Err(self.cancel(id));
                }
                if detached {
                    self.ends.filled(id);
                }
                SendOp::Write { data: Payload::Gather(&sge), remote, imm }
            }
            (Verb::Read { len }, Some(place)) => {
                sge = [Sge { addr: self.buffers.addr(place), len }];
                SendOp::Read { into: &sge, remote }
            }
            (Verb::FetchAdd { add }, Some(place)) => {
                SendOp::FetchAdd { result: self.buffers.addr(place), remote, add }
            }
            (Verb::CompareSwap { compare, swap }, Some(place)) => {
                SendOp::CompareSwap { result: self.buffers.addr(place), remote, compare, swap }
            }
            (_, None) => return Err(self.cancel(id)),
        };
        let work = SendWr { id: id.wr_id(), op, signaled: true, solicited: imm_of(verb), fence: false };
        match self.rnic.post_send(qp, &[work]) {
            Ok(()) => {
                self.platform.wake_poller();
                Ok(())
            }
            Err((_, error)) => {
                let invalid = self.cancel(id);
                Err(match error {
                    VerbsError::NoResources => NotPosted::Busy,
                    VerbsError::InvalidArgument | VerbsError::LocalProtection => invalid,
                    _ => NotPosted::ConnectionLost,
                })
            }
        }
    }
}

/// Copies `head` and `tail` into `buffer`, if there is room.
#[inline]
fn join<'b>(buffer: &'b mut [u8], head: &[u8], tail: &[u8]) -> Option<&'b [u8]> {
    let bytes = buffer.get_mut(..head.len() + tail.len())?;
    let (first, rest) = bytes.split_at_mut(head.len());
    first.copy_from_slice(head);
    rest.copy_from_slice(tail);
    Some(bytes)
}

impl Node {
    /// Releases the slot of an operation that could not be posted. Returns the default reason, `Invalid`.
    #[cold]
    pub(super) fn cancel(&self, id: OpId) -> NotPosted {
        let waker = self.ops.lock().cancel(id);
        self.finish(waker);
        NotPosted::Invalid
    }
}

/// Returns the trace event of a work request.
pub(super) fn posted(id: OpId, verb: Verb<'_>, peer: NodeId, lane: usize) -> Event {
    let (work, bytes) = match verb {
        Verb::Write { head, tail, imm: Some(_) } => (Work::Message, head.len() + tail.len()),
        Verb::Write { head, tail, imm: None } => (Work::Write, head.len() + tail.len()),
        Verb::Read { len } => (Work::Read, len as usize),
        Verb::FetchAdd { .. } | Verb::CompareSwap { .. } => (Work::Atomic, 8),
    };
    Event::Posted { id: id.wr_id().0, work, peer, lane: lane as u8, bytes: bytes as u32 }
}

fn imm_of(verb: Verb<'_>) -> bool {
    matches!(verb, Verb::Write { imm: Some(_), .. })
}
