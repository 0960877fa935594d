//! Posting one work request with all it needs: a credit of the queue pair, a bounce buffer, a slot.

use super::{Holds, OpId};
use crate::conn::Conn;
use crate::node::Node;
use crate::region::Mapping;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use verbs::{Payload, RemoteAddr, SendOp, SendWr, Sge, VerbsError};

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

/// Why nothing was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotPosted {
    /// No slot, buffer or room in the queue pair now.
    Busy,
    /// The connection is at its end.
    ConnectionLost,
    /// The mapping has been revoked.
    Revoked,
    /// No bounce buffer is that large, or memory refused.
    Invalid,
}

impl Node {
    /// Posts `verb` on a queue pair of `conn`, for `mapping` if it touches a region. `detached`: nobody will wait for it.
    pub(crate) fn try_post(
        &self,
        conn: &Arc<Conn>,
        lane: usize,
        verb: Verb<'_>,
        remote: RemoteAddr,
        mapping: Option<&Arc<Mapping>>,
        detached: bool,
    ) -> Result<OpId, NotPosted> {
        if conn.is_shut() {
            return Err(NotPosted::ConnectionLost);
        }
        let Some(qp) = conn.lane(lane) else { return Err(NotPosted::Invalid) };
        if let Some(mapping) = mapping
            && !mapping.gate.enter()
        {
            return Err(NotPosted::Revoked);
        }
        let leave = |why| {
            if let Some(mapping) = mapping {
                mapping.gate.exit();
            }
            Err(why)
        };
        if qp.in_flight.fetch_add(1, Ordering::AcqRel) >= self.config.send_depth {
            qp.in_flight.fetch_sub(1, Ordering::AcqRel);
            return leave(NotPosted::Busy);
        }
        let (inline, bytes) = match verb {
            Verb::Write { head, tail, .. } => {
                let bytes = head.len() + tail.len();
                (bytes <= self.max_inline.min(MAX_INLINE), bytes)
            }
            Verb::Read { len } => (false, len as usize),
            Verb::FetchAdd { .. } | Verb::CompareSwap { .. } => (false, 8),
        };
        let bounce = if inline {
            None
        } else {
            let Some(bounce) = self.bounce.lock().take(bytes) else {
                qp.in_flight.fetch_sub(1, Ordering::AcqRel);
                return leave(NotPosted::Busy);
            };
            Some(bounce)
        };
        let place = bounce.as_ref().map(|b| b.addr);
        let holds = Holds { conn: conn.clone(), lane, mapping: mapping.cloned() };
        let mut ops = self.ops.lock();
        if !ops.has_room() {
            drop(ops);
            qp.in_flight.fetch_sub(1, Ordering::AcqRel);
            if let Some(bounce) = bounce {
                self.bounce.lock().give(bounce);
            }
            return leave(NotPosted::Busy);
        }
        let id = ops.take(holds, bounce, detached);
        drop(ops);
        let Some(id) = id else { return leave(NotPosted::Busy) };

        let mut buffer = [0u8; MAX_INLINE];
        let sge;
        let op = match (verb, place) {
            (Verb::Write { head, tail, imm }, None) => {
                let (a, rest) = buffer.split_at_mut(head.len());
                a.copy_from_slice(head);
                let (b, _) = rest.split_at_mut(tail.len());
                b.copy_from_slice(tail);
                let data = buffer.get(..bytes).unwrap_or_default();
                Some(SendOp::Write { data: Payload::Inline(data), remote, imm })
            }
            (Verb::Write { head, tail, imm }, Some(addr)) => {
                sge = [Sge { addr, len: bytes as u32 }];
                let memory = self.platform.memory();
                let written = addr.checked_add(head.len() as u64).is_some_and(|after| {
                    memory.write(addr, head).is_ok() && memory.write(after, tail).is_ok()
                });
                written.then_some(SendOp::Write { data: Payload::Gather(&sge), remote, imm })
            }
            (Verb::Read { len }, Some(addr)) => {
                sge = [Sge { addr, len }];
                Some(SendOp::Read { into: &sge, remote })
            }
            (Verb::FetchAdd { add }, Some(result)) => Some(SendOp::FetchAdd { result, remote, add }),
            (Verb::CompareSwap { compare, swap }, Some(result)) => {
                Some(SendOp::CompareSwap { result, remote, compare, swap })
            }
            (_, None) => None,
        };
        let posted = op.ok_or(NotPosted::Invalid).and_then(|op| {
            let work = SendWr { id: id.wr_id(), op, signaled: true, solicited: imm_of(verb), fence: false };
            self.rnic.post_send(qp.number, &[work]).map_err(|(_, e)| match e {
                VerbsError::NoResources => NotPosted::Busy,
                VerbsError::InvalidArgument | VerbsError::LocalProtection => NotPosted::Invalid,
                _ => NotPosted::ConnectionLost,
            })
        });
        match posted {
            Ok(()) => {
                self.platform.wake_poller();
                Ok(id)
            }
            Err(refused) => {
                self.take_back(id);
                Err(refused)
            }
        }
    }

    /// Undoes what [`try_post`](Self::try_post) took for a work request that was refused.
    fn take_back(&self, id: OpId) {
        let finished = {
            let mut ops = self.ops.lock();
            let finished = ops.complete(id, verbs::Status::LocalQpOperationError);
            let bounce = ops.abandon(id);
            finished.map(|f| (f, bounce))
        };
        if let Some((finished, bounce)) = finished {
            self.finish(finished);
            self.give_back(bounce);
        }
    }
}

fn imm_of(verb: Verb<'_>) -> bool {
    matches!(verb, Verb::Write { imm: Some(_), .. })
}
