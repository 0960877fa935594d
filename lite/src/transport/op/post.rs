//! The posting of one work request on a connection that its caller has chosen: of a task, or of LITE itself.

use super::status::OpId;
use super::table::WaitMode;
use super::transport::Transport;
use super::work::{Access, Effect, NotPosted, Verb};
use crate::base::trace::{Event, Work};
use crate::transport::conn::Conn;
use alloc::sync::Arc;
use platform::IoAddr;
use proto::NodeId;
use verbs::RemoteAddr;

impl Transport {
    /// Posts a message on the queue pair of RPC that `shard` has of `conn`: writes `head`, then `tail`, to
    /// `addr`, and tells the peer `imm`. No task will wait for its end.
    #[inline(always)]
    pub(crate) fn post_message<const HEAD: usize>(
        &self,
        (conn, shard): (&Arc<Conn>, usize),
        (head, tail): (&[u8; HEAD], &[u8]),
        addr: IoAddr,
        imm: u32,
    ) -> Result<(), NotPosted> {
        let qp_index = conn.group.lanes.rpc(shard);
        let Some(qp) = conn.queue_pair(qp_index) else { return Err(NotPosted::Invalid) };
        let is_plain = self.standing.is_plain();
        if !is_plain && self.local.lease.is_suspended() && !conn.is_shut() {
            return Err(NotPosted::Busy);
        }
        let verb = Verb::Write { head, tail, imm: Some(imm) };
        let (bytes, depth) = (self.bounce_len(verb), self.send_depth);
        let shard = self.shards.get(shard);
        let taken = shard.ops.lock().take((conn, qp_index), Effect::NOTHING, bytes, depth, WaitMode::Nobody);
        let (id, offset) = taken?;
        if !is_plain {
            self.local.trace(|| posted(id, verb, conn.peer, qp_index));
        }
        let remote = RemoteAddr { addr, key: conn.remote_key.rkey };
        self.submit((shard, qp.number), (id, true), offset, verb, remote)
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
        let shard = self.shards.get(conn.group.lanes.shard_of(qp_index));
        let (id, offset) = {
            let mut ops = shard.ops.lock();
            pass.map_or(Ok(()), |p| p.check())?;
            let depth = self.send_depth;
            ops.take((conn, qp_index), touch, self.bounce_len(verb), depth, WaitMode::Task)?
        };
        self.local.trace(|| posted(id, verb, conn.peer, qp_index));
        self.submit((shard, qp.number), (id, false), offset, verb, remote).map(|()| id)
    }

    /// Releases the slot of an operation that could not be posted. Returns the default reason, `Invalid`.
    #[cold]
    pub(crate) fn cancel(&self, id: OpId) -> NotPosted {
        let wakes = self.shards.of(id).ops.lock().cancel(id);
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
