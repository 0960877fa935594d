//! The posting of one work request on a connection that its caller has chosen: of a task, or of LITE itself.

use super::fast_path::{FastRoute, InFlight, join};
use super::status::{OpId, unsignaled_id};
use super::table::{Shard, WaitMode};
use super::transport::Transport;
use super::work::{Access, Effect, MAX_INLINE, NotPosted, Verb};
use crate::Permissions;
use crate::base::own::{Elements, Hold, OwnPiece};
use crate::base::qos::Share;
use crate::base::trace::{Event, Work};
use crate::channel::Channel;
use crate::transport::conn::{Conn, QueuePair};
use alloc::sync::Arc;
use core::task::Waker;
use platform::{Instant, IoAddr};
use proto::NodeId;
use verbs::{Payload, QpNum, RemoteAddr, SendOp, SendWr, Sge, VerbsError};

/// The length of the shorter of two buffers in which messages are assembled, in bytes.
const SHORT: usize = 128;

impl Transport {
    /// Posts a message on the queue pair of RPC that `shard` has of `conn`: writes `head`, then `tail`, to
    /// `addr`, and tells the peer `imm`. No task will wait for its end.
    #[inline(always)]
    pub(crate) fn post_message<const HEAD: usize>(
        &self,
        (conn, shard): (&Arc<Conn>, usize),
        (head, tail): ([u8; HEAD], &[u8]),
        addr: IoAddr,
        imm: u32,
    ) -> Result<(), NotPosted> {
        let qp_index = conn.group.lanes.rpc(shard);
        let Some(qp) = conn.queue_pair(qp_index) else { return Err(NotPosted::Invalid) };
        let is_plain = self.standing.is_plain();
        if !is_plain && self.local.lease.is_suspended() && !conn.is_shut() {
            return Err(NotPosted::Busy);
        }
        let shard = self.shards.at(shard);
        // A message that the RNIC copies when it is posted needs no slot, unless it is signalled.
        let is_inline = self.is_inline(HEAD + tail.len());
        if is_inline && is_plain && shard.ops.lock().take_unsignaled(conn, qp, self.send_depth)? {
            let remote = RemoteAddr { addr, key: conn.remote_key.rkey };
            return self.post_unsignaled((conn, shard), qp, (head, tail), remote, imm);
        }
        self.post_signaled((conn, shard), (qp_index, qp.number), (head, tail), addr, imm)
    }

    /// Does the work of [`post_message`](Self::post_message) for a message that needs a slot. It takes the
    /// head by value: with a reference, the path without a slot would store the head, and load it again.
    #[inline(never)]
    fn post_signaled<const HEAD: usize>(
        &self,
        (conn, shard): (&Arc<Conn>, &Shard),
        (qp_index, qp): (usize, QpNum),
        (head, tail): ([u8; HEAD], &[u8]),
        addr: IoAddr,
        imm: u32,
    ) -> Result<(), NotPosted> {
        let verb = Verb::Write { head: &head, tail, imm: Some(imm) };
        let (bytes, depth) = (self.bounce_len(verb), self.send_depth);
        let taken = shard.ops.lock().take((conn, qp_index), Effect::NOTHING, bytes, depth, WaitMode::Nobody);
        let (id, offset) = taken?;
        if !self.standing.is_plain() {
            self.local.trace(|| posted(id, verb, conn.peer, qp_index));
        }
        let remote = RemoteAddr { addr, key: conn.remote_key.rkey };
        self.submit((shard, qp), (id, true), offset, verb, remote)
    }

    /// Posts a message that has been counted on its queue pair, unsignalled. If it fails, its completion
    /// tells the identifier of the connection.
    #[inline(always)]
    fn post_unsignaled<const HEAD: usize>(
        &self,
        (conn, shard): (&Conn, &Shard),
        qp: &QueuePair,
        (head, tail): ([u8; HEAD], &[u8]),
        remote: RemoteAddr,
        imm: u32,
    ) -> Result<(), NotPosted> {
        // Most messages are short, and the shorter buffer is cleared in less time.
        let (mut short, mut long);
        let buffer: &mut [u8] = if HEAD + tail.len() <= SHORT {
            short = [0; SHORT];
            &mut short
        } else {
            long = [0; MAX_INLINE];
            &mut long
        };
        let bytes = join(buffer, &head, tail);
        let id = unsignaled_id(conn.group.receive_id);
        let op = |data| SendOp::Write { data: Payload::Inline(data), remote, imm: Some(imm) };
        let work = |data| SendWr { id, op: op(data), signaled: false, solicited: true, fence: false };
        let posted = match bytes {
            Some(data) => self.rnic.post_send(qp.number, &[work(data)]).map_err(|(_, error)| error),
            None => Err(VerbsError::InvalidArgument),
        };
        match posted {
            Ok(()) => {
                self.platform.wake_poller();
                Ok(())
            }
            Err(error) => {
                let ops = shard.ops.lock();
                qp.cancel_unsignaled();
                drop(ops);
                Err(self.not_posted(shard, error))
            }
        }
    }

    /// Posts a signalled message without bytes or effect on the queue pair of a channel of `conn`, if
    /// unsignalled ones may be in flight: its end is theirs too.
    pub(crate) fn post_flush(&self, conn: &Arc<Conn>, channel: &Channel) -> Result<(), NotPosted> {
        let qp_index = conn.group.lanes.rpc(channel.shard);
        let Some(qp) = conn.queue_pair(qp_index).filter(|qp| qp.has_unsignaled()) else { return Ok(()) };
        let (lane, shard) = ((conn, qp_index), self.shards.at(channel.shard));
        let taken = shard.ops.lock().take(lane, Effect::NOTHING, None, self.send_depth, WaitMode::Nobody);
        let (id, _) = taken?;
        let verb = Verb::Write { head: &[], tail: &[], imm: None };
        let remote = RemoteAddr { addr: channel.remote.ring, key: conn.remote_key.rkey };
        self.submit((shard, qp.number), (id, true), None, verb, remote)
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
        let shard = self.shards.at(conn.group.lanes.shard_of(qp_index));
        let (id, offset) = {
            let mut ops = shard.ops.lock();
            pass.map_or(Ok(()), |p| p.check())?;
            let depth = self.send_depth;
            ops.take((conn, qp_index), touch, self.bounce_len(verb), depth, WaitMode::Task)?
        };
        self.local.trace(|| posted(id, verb, conn.peer, qp_index));
        self.submit((shard, qp.number), (id, false), offset, verb, remote).map(|()| id)
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
        let shard = self.shards.at(conn.group.lanes.shard_of(qp_index));
        let id = {
            let mut ops = shard.ops.lock();
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
        let work = SendWr { id: id.wr_id(), op, signaled: true, solicited: false, fence: false };
        self.hand_over((shard, qp.number), id, &work).map(|()| id)
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
    ) -> Option<InFlight<'_>> {
        if !self.standing.is_plain() {
            return None;
        }
        let changes = right == Permissions::WRITE;
        let shard = self.shards.here(&*self.platform);
        let to = {
            let mut ops = shard.ops.lock();
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
        let work = SendWr { id: to.id.wr_id(), op, signaled: true, solicited: false, fence: false };
        self.hand_over((shard, to.qp), to.id, &work).ok()?;
        Some(InFlight::on(shard, to.id))
    }

    /// Releases the slot of an operation that could not be posted. Returns the default reason, `Invalid`.
    #[cold]
    pub(crate) fn cancel(&self, id: OpId) -> NotPosted {
        let shard = self.shards.of(id);
        let wakes = shard.ops.lock().cancel(id);
        shard.wake(wakes);
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
