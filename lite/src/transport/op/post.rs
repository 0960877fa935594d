//! The posting of one work request on a connection that its task has chosen.

use super::status::OpId;
use super::table::WaitMode;
use super::transport::Transport;
use super::work::{Access, Effect, NotPosted, Verb};
use crate::base::trace::{Event, Work};
use crate::transport::conn::Conn;
use alloc::sync::Arc;
use proto::NodeId;
use verbs::RemoteAddr;

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
        let waits = if detached { WaitMode::Nobody } else { WaitMode::Task };
        let (id, offset) = {
            let mut ops = self.ops.lock();
            pass.map_or(Ok(()), |p| p.check())?;
            let depth = self.send_depth;
            ops.take((conn, qp_index), touch, self.bounce_len(verb), depth, waits)?
        };
        self.local.trace(|| posted(id, verb, conn.peer, qp_index));
        self.submit(qp.number, (id, detached), offset, verb, remote).map(|()| id)
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
