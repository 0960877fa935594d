//! The posting of one work request on a connection that its caller has chosen: of a task, or of LITE itself.

use super::fast_path::FastRoute;
use super::status::OpId;
use super::table::WaitMode;
use super::transport::Transport;
use super::work::{Access, Effect, NotPosted, Verb};
use crate::Permissions;
use crate::base::own::{Elements, Hold, OwnPiece};
use crate::base::qos::Share;
use crate::base::trace::{Event, Work};
use crate::transport::conn::{Conn, RPC_QP};
use alloc::sync::Arc;
use core::task::Waker;
use platform::{Instant, IoAddr};
use proto::NodeId;
use verbs::{Payload, RemoteAddr, SendOp, Sge};

impl Transport {
    /// Posts a message on `conn`: writes `head`, then `tail`, to `addr`, and tells the peer `imm`. No task
    /// will wait for its end.
    #[inline(always)]
    pub(crate) fn post_message<const HEAD: usize>(
        &self,
        conn: &Arc<Conn>,
        (head, tail): (&[u8; HEAD], &[u8]),
        addr: IoAddr,
        imm: u32,
    ) -> Result<(), NotPosted> {
        let Some(qp) = conn.queue_pair(RPC_QP) else { return Err(NotPosted::Invalid) };
        let is_plain = self.standing.is_plain();
        if !is_plain && self.local.lease.is_suspended() && !conn.is_shut() {
            return Err(NotPosted::Busy);
        }
        let verb = Verb::Write { head, tail, imm: Some(imm) };
        let (bytes, depth) = (self.bounce_len(verb), self.send_depth);
        let taken = self.ops.lock().take((conn, RPC_QP), Effect::NOTHING, bytes, depth, WaitMode::Nobody);
        let (id, offset) = taken?;
        if !is_plain {
            self.local.trace(|| posted(id, verb, conn.peer, RPC_QP));
        }
        let remote = RemoteAddr { addr, key: conn.remote_key.rkey };
        self.submit(qp.number, (id, true), offset, verb, remote)
    }

    /// Posts `verb` on a queue pair of `conn`, with `pass` if it accesses a region. A task waits for it.
    pub(crate) fn try_post(
        &self,
        conn: &Arc<Conn>,
        qp_index: usize,
        verb: Verb<'_>,
        remote: RemoteAddr,
        pass: Option<Access<'_>>,
    ) -> Result<OpId, NotPosted> {
        let Some(qp) = conn.queue_pair(qp_index) else { return Err(NotPosted::Invalid) };
        if self.local.lease.is_suspended() && !conn.is_shut() {
            return Err(NotPosted::Busy);
        }
        let touch = pass.map_or(Effect::NOTHING, |p| p.touch(verb));
        let (id, offset) = {
            let mut ops = self.ops.lock();
            pass.map_or(Ok(()), |p| p.check())?;
            let depth = self.send_depth;
            ops.take((conn, qp_index), touch, self.bounce_len(verb), depth, WaitMode::Task)?
        };
        self.local.trace(|| posted(id, verb, conn.peer, qp_index));
        self.submit(qp.number, (id, false), offset, verb, remote).map(|()| id)
    }

    /// Posts a read into memory of the application, or a write from it, as [`try_post`](Self::try_post) does;
    /// `right` tells which of the two. The operation keeps `hold` until its end.
    pub(crate) fn try_post_own(
        &self,
        conn: &Arc<Conn>,
        qp_index: usize,
        (right, elements, hold): (Permissions, &Elements, &Hold),
        remote: RemoteAddr,
        pass: Option<Access<'_>>,
    ) -> Result<OpId, NotPosted> {
        let Some(qp) = conn.queue_pair(qp_index) else { return Err(NotPosted::Invalid) };
        if self.local.lease.is_suspended() && !conn.is_shut() {
            return Err(NotPosted::Busy);
        }
        let changes = right == Permissions::WRITE;
        let touch = pass.map_or(Effect::NOTHING, |p| Effect { stamp: p.stamp, changes });
        let id = {
            let mut ops = self.ops.lock();
            pass.map_or(Ok(()), |p| p.check())?;
            ops.take_own((conn, qp_index), touch, hold, self.send_depth)?
        };
        let (list, bytes) = (elements.list(), elements.len);
        let (op, work) = if changes {
            (SendOp::Write { data: Payload::Gather(list), remote, imm: None }, Work::Write)
        } else {
            (SendOp::Read { into: list, remote }, Work::Read)
        };
        let (peer, queue_pair) = (conn.peer, qp_index as u8);
        self.local.trace(|| Event::Posted { id: id.wr_id().0, work, peer, queue_pair, bytes });
        self.hand_over(qp.number, id, op, false).map(|()| id)
    }

    /// Does the work of [`post_fast`](Self::post_fast) for a read into memory of the application, or a write
    /// from it; `right` tells which of the two. The operation keeps `hold` until its end.
    pub(crate) fn post_fast_own(
        &self,
        route: &FastRoute,
        right: Permissions,
        ((addr, len), hold): (OwnPiece, &Hold),
        deadline: Instant,
        waker: Waker,
    ) -> Option<OpId> {
        if !self.standing.is_plain() {
            return None;
        }
        let changes = right == Permissions::WRITE;
        let to = {
            let mut ops = self.ops.lock();
            let touch = Effect { stamp: route.stamp, changes };
            let to =
                ops.take_fast(route.member, Share::All, touch, None, self.send_depth, (waker, deadline))?;
            ops.hold(to.id, hold);
            ops.fast_path.count_own(changes, len);
            ops.note_deadline(deadline, &self.standing);
            to
        };
        let (list, remote) = ([Sge { addr, len: len as u32 }], RemoteAddr { addr: route.addr, key: to.key });
        let op = if changes {
            SendOp::Write { data: Payload::Gather(&list), remote, imm: None }
        } else {
            SendOp::Read { into: &list, remote }
        };
        self.hand_over(to.qp, to.id, op, false).ok().map(|()| to.id)
    }

    /// Releases the slot of an operation that could not be posted. Returns the default reason, `Invalid`.
    #[cold]
    pub(crate) fn cancel(&self, id: OpId) -> NotPosted {
        let wakes = self.ops.lock().cancel(id);
        self.wake(wakes);
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
