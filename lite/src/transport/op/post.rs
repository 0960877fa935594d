//! Posting of one work request with all that it needs: a credit of the queue pair, a bounce buffer, a slot.

use super::status::OpId;
use super::table::Waits;
use super::transport::Transport;
use super::work::{Access, Effect, NotPosted, Verb};
use crate::base::bounce::BufferOffset;
use crate::base::trace::{Event, Work};
use crate::transport::conn::Conn;
use alloc::sync::Arc;
use proto::NodeId;
use verbs::{Payload, QpNum, RemoteAddr, SendOp, SendWr, Sge, VerbsError};

/// The longest payload that is assembled on the stack for an inline work request, in bytes.
const MAX_INLINE: usize = 256;

impl Transport {
    /// Posts `verb` on a queue pair of `conn`, with `pass` if it accesses a region. `detached`: no task
    /// will wait for it.
    pub(crate) fn try_post(
        &self,
        conn: &Arc<Conn>,
        qp_index: usize,
        verb: Verb<'_>,
        remote: RemoteAddr,
        pass: Option<Access<'_>>,
        detached: bool,
    ) -> Result<OpId, NotPosted> {
        let Some(qp) = conn.queue_pair(qp_index) else { return Err(NotPosted::Invalid) };
        if self.local.lease.is_suspended() && !conn.is_shut() {
            return Err(NotPosted::Busy);
        }
        let touch = pass.map_or(Effect::NOTHING, |p| p.touch(verb));
        let waits = if detached { Waits::Nobody } else { Waits::Task };
        let (id, place) = {
            let mut ops = self.ops.lock();
            pass.map_or(Ok(()), |p| p.check())?;
            let depth = self.send_depth;
            ops.take((conn, qp_index), touch, self.bounce_len(verb), depth, waits)?
        };
        self.local.trace(|| posted(id, verb, conn.peer, qp_index));
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
        place: Option<BufferOffset>,
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
                self.local.platform.wake_poller();
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

impl Transport {
    /// Releases the slot of an operation that could not be posted. Returns the default reason, `Invalid`.
    #[cold]
    pub(crate) fn cancel(&self, id: OpId) -> NotPosted {
        let waker = self.ops.lock().cancel(id);
        self.finish(waker);
        NotPosted::Invalid
    }
}

/// Returns the trace event of a work request.
pub(crate) fn posted(id: OpId, verb: Verb<'_>, peer: NodeId, qp_index: usize) -> Event {
    let (work, bytes) = match verb {
        Verb::Write { head, tail, imm: Some(_) } => (Work::Message, head.len() + tail.len()),
        Verb::Write { head, tail, imm: None } => (Work::Write, head.len() + tail.len()),
        Verb::Read { len } => (Work::Read, len as usize),
        Verb::FetchAdd { .. } | Verb::CompareSwap { .. } => (Work::Atomic, 8),
    };
    Event::Posted { id: id.wr_id().0, work, peer, queue_pair: qp_index as u8, bytes: bytes as u32 }
}

fn imm_of(verb: Verb<'_>) -> bool {
    matches!(verb, Verb::Write { imm: Some(_), .. })
}
