//! Posting one work request with all it needs: a credit of the queue pair, a bounce buffer, a slot.

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

/// Longest payload assembled on the stack for an inline work request.
const MAX_INLINE: usize = 256;

/// What to post.
#[derive(Clone, Copy)]
pub(crate) enum Verb<'a> {
    /// Writes `head`, then `tail`.
    Write { head: &'a [u8], tail: &'a [u8], imm: Option<u32> },
    /// Reads so many bytes.
    Read { len: u32 },
    /// Adds.
    FetchAdd { add: u64 },
    /// Compares and swaps.
    CompareSwap { compare: u64, swap: u64 },
}

impl Verb<'_> {
    /// Whether it changes the memory at the other end.
    #[inline]
    pub(crate) const fn changes(self) -> bool {
        !matches!(self, Self::Read { .. })
    }
}

/// The right to go through a mapping to a place in it.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    /// The mapping, and the epoch that the place was looked up in.
    pub(crate) seen: (&'a Mapping, Epoch),
    /// Over which queue pairs.
    pub(crate) share: Share,
}

impl Pass<'_> {
    /// Whether it still holds. To be called under the lock of the table of operations, where who changes a mapping then looks
    /// for what came before.
    pub(super) fn check(&self) -> Result<(), NotPosted> {
        let (mapping, epoch) = self.seen;
        mapping.gate.check(epoch).map_err(NotPosted::from)
    }

    /// What `verb` touches with it.
    pub(super) fn touch(&self, verb: Verb<'_>) -> Touch {
        Touch { stamp: self.seen.0.stamp.id(), changes: verb.changes() }
    }
}

/// Why nothing was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotPosted {
    /// No slot, buffer or room in the queue pair now, or this node is suspended.
    Busy,
    /// The connection is at its end.
    ConnectionLost,
    /// The mapping has been revoked.
    Revoked,
    /// The mapping is being changed, or has been since its place was looked up: look again.
    Changed,
    /// No bounce buffer is that large, or memory refused.
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
    /// Posts `verb` on a queue pair of `conn`, with `pass` if it touches a region. `detached`: nobody will wait for it.
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

    /// Bytes of the bounce buffer that `verb` needs, if it needs one.
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

    /// Hands the RNIC what has a slot, and a bounce buffer if it needs one. On `Err` the slot is free again. `detached`: nobody
    /// will wait for it.
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

/// Puts one behind the other, if there is room.
#[inline]
fn join<'b>(buffer: &'b mut [u8], head: &[u8], tail: &[u8]) -> Option<&'b [u8]> {
    let bytes = buffer.get_mut(..head.len() + tail.len())?;
    let (first, rest) = bytes.split_at_mut(head.len());
    first.copy_from_slice(head);
    rest.copy_from_slice(tail);
    Some(bytes)
}

impl Node {
    /// What has a slot is not posted after all: why, unless it is known better.
    #[cold]
    pub(super) fn cancel(&self, id: OpId) -> NotPosted {
        let waker = self.ops.lock().cancel(id);
        self.finish(waker);
        NotPosted::Invalid
    }
}

/// The event of a work request.
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
