//! One work request, from its posting to its end, as its task sees it.
//!
//! The fast path posts an operation at once if its connection exists and has room, under one lock and without
//! a timer of its own. In all other cases the slow path does it.

use super::links::MemberIndex;
use super::status::{OpId, OpStage};
use super::table::{Released, Shard};
use super::transport::Transport;
use super::validity::StampId;
use super::work::{Effect, MAX_INLINE, NotPosted, Verb};
use crate::Error;
use crate::base::bounce::BufferOffset;
use crate::base::qos::{Class, Share};
use core::future::Future;
use core::pin::Pin;
use core::slice;
use core::task::{Context, Poll, Waker};
use platform::{Instant, IoAddr};
use verbs::{Payload, QpNum, RemoteAddr, SendOp, SendWr, Sge, Status, VerbsError};

/// The target on the fast path, valid while the mapping of `stamp` is as it was when it was made.
pub(crate) struct FastRoute {
    pub(crate) member: MemberIndex,
    pub(crate) addr: IoAddr,
    pub(crate) stamp: StampId,
}

impl Transport {
    /// Returns the deadline of an operation that begins now, `timeout` nanoseconds from now. Suspends this
    /// node if its lease has passed.
    #[inline(always)]
    pub(crate) fn deadline(&self, timeout: u64) -> Instant {
        let now = self.platform.now();
        // The lease has not passed before something is due.
        if self.standing.is_due(now) {
            self.local.look_at_lease(now);
        }
        Instant::from_nanos(now.as_nanos().saturating_add(timeout))
    }

    /// Posts at once, with the waker of the task that waits. Otherwise returns `None` and nothing has
    /// happened; the slow path finds the reason. `admitted`: the limits and the scheme of the class have been
    /// applied to the operation.
    #[inline(always)]
    pub(crate) fn post_fast(
        &self,
        route: &FastRoute,
        verb: Verb<'_>,
        deadline: Instant,
        (class, admitted): (&Class, bool),
        waker: Waker,
    ) -> Option<InFlight<'_>> {
        let mut shard = self.shards.here(&*self.platform);
        let (mut share, mut traced) = (Share::All, false);
        if !self.standing.is_plain() {
            (shard, share, traced) = self.attention(shard, route.member, class, admitted)?;
        }
        let bytes = self.bounce_len(verb);
        let to = {
            // The mapping is checked under this lock: a task that changes it then finds the operations
            // posted before under this lock.
            let mut ops = shard.ops.lock();
            let touch = Effect { stamp: route.stamp, changes: verb.changes() };
            let waits = (waker, deadline);
            let to = ops.take_fast(route.member, share, touch, bytes, self.send_depth, waits)?;
            ops.fast_path.count(verb, bytes);
            ops.note_deadline(deadline, &self.standing);
            to
        };
        if traced {
            self.record_posted(to.id, verb);
        }
        let remote = RemoteAddr { addr: route.addr, key: to.key };
        self.submit((shard, to.qp), (to.id, false), to.offset, verb, remote).ok()?;
        Some(InFlight::on(shard, to.id))
    }

    /// Returns the shard and the queue pairs for an operation of the cores of `here` on memory of `member`,
    /// and true if events are traced; `None` if no operation may begin, or may be delayed.
    #[cold]
    fn attention<'s>(
        &'s self,
        here: &'s Shard,
        member: MemberIndex,
        class: &Class,
        admitted: bool,
    ) -> Option<(&'s Shard, Share, bool)> {
        let qos = &self.local.qos;
        let may_begin = self.local.lease.may_begin() && (admitted || !class.is_rated(qos));
        // A peer with fewer cores has no queue pairs for some shards.
        let shard = here.ops.lock().links.shard_to(member).map_or(here, |used| self.shards.at(used));
        may_begin.then(|| (shard, class.share(qos), self.standing.is_traced()))
    }

    #[cold]
    fn record_posted(&self, id: OpId, verb: Verb<'_>) {
        let lane = self.shards.of(id).ops.lock().lane_of(id);
        if let Some((peer, qp_index)) = lane {
            self.local.record(super::post::posted(id, verb, peer, qp_index));
        }
    }

    /// Returns true if the RNIC copies a payload of that many bytes when it is posted.
    #[inline(always)]
    pub(super) fn is_inline(&self, bytes: usize) -> bool {
        bytes <= self.max_inline
    }

    /// Returns the length of the bounce buffer that `verb` needs, if it needs one.
    #[inline]
    pub(crate) fn bounce_len(&self, verb: Verb<'_>) -> Option<usize> {
        match verb {
            Verb::Write { head, tail, .. } => {
                let bytes = head.len() + tail.len();
                (!self.is_inline(bytes)).then_some(bytes)
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
        (shard, qp): (&Shard, QpNum),
        (id, detached): (OpId, bool),
        offset: Option<BufferOffset>,
        verb: Verb<'_>,
        remote: RemoteAddr,
    ) -> Result<(), NotPosted> {
        let mut buffer;
        let sge;
        let op = match (verb, offset) {
            (Verb::Write { head, tail: [], imm }, None) => {
                SendOp::Write { data: Payload::Inline(head), remote, imm }
            }
            (Verb::Write { head, tail, imm }, None) => {
                buffer = [0u8; MAX_INLINE];
                let Some(bytes) = join(&mut buffer, head, tail) else { return Err(self.cancel(id)) };
                SendOp::Write { data: Payload::Inline(bytes), remote, imm }
            }
            (Verb::Write { head, tail, imm }, Some(offset)) => {
                let (buffers, addr) = (&shard.buffers, shard.buffers.addr(offset));
                sge = [Sge { addr, len: (head.len() + tail.len()) as u32 }];
                let is_filled = buffers.write(offset, 0, head).is_ok()
                    && (tail.is_empty() || buffers.write(offset, head.len(), tail).is_ok());
                if !is_filled {
                    return Err(self.cancel(id));
                }
                if detached {
                    shard.ends.filled(id);
                }
                SendOp::Write { data: Payload::Gather(&sge), remote, imm }
            }
            (Verb::Read { len }, Some(offset)) => {
                sge = [Sge { addr: shard.buffers.addr(offset), len }];
                SendOp::Read { into: &sge, remote }
            }
            (Verb::FetchAdd { add }, Some(offset)) => {
                SendOp::FetchAdd { result: shard.buffers.addr(offset), remote, add }
            }
            (Verb::CompareSwap { compare, swap }, Some(offset)) => {
                SendOp::CompareSwap { result: shard.buffers.addr(offset), remote, compare, swap }
            }
            (_, None) => return Err(self.cancel(id)),
        };
        let work = SendWr { id: id.wr_id(), op, signaled: true, solicited: imm_of(verb), fence: false };
        self.hand_over((shard, qp), id, &work)
    }

    /// Passes the work request of an operation that has a slot to the RNIC. On `Err` the slot has been
    /// released.
    #[inline(always)]
    pub(super) fn hand_over(
        &self,
        (shard, qp): (&Shard, QpNum),
        id: OpId,
        work: &SendWr<'_>,
    ) -> Result<(), NotPosted> {
        match self.rnic.post_send(qp, slice::from_ref(work)) {
            Ok(()) => {
                self.platform.wake_poller();
                Ok(())
            }
            Err((_, error)) => {
                self.cancel(id);
                Err(self.not_posted(shard, error))
            }
        }
    }

    /// Returns the reason for which the RNIC did not accept a work request of a shard.
    #[cold]
    pub(super) fn not_posted(&self, shard: &Shard, error: VerbsError) -> NotPosted {
        match error {
            VerbsError::NoResources => {
                shard.ops.lock().want();
                NotPosted::Busy
            }
            VerbsError::InvalidArgument | VerbsError::LocalProtection => NotPosted::Invalid,
            _ => NotPosted::ConnectionLost,
        }
    }

    /// Polls a work request for which a task waits.
    #[inline(always)]
    pub(crate) fn poll_op(&self, id: OpId, cx: &Context<'_>) -> Poll<(Ended, Option<OpId>)> {
        self.shards.of(id).poll_op(id, cx)
    }

    /// Ends the interest in a work request: no task waits for it or needs its result any more.
    pub(crate) fn let_go(&self, id: OpId) {
        self.shards.of(id).let_go(id);
    }
}

impl Shard {
    /// Ends the interest in a work request of this shard: no task waits for it or needs its result any more.
    #[inline]
    fn let_go(&self, id: OpId) {
        let released = self.ops.lock().let_go(id);
        self.released(released);
    }

    /// Wakes the tasks that wait for what an operation has released.
    #[inline(always)]
    fn released(&self, Released { wanted, own }: Released) {
        if wanted {
            self.wake_waiters();
        }
        if let Some(own) = own {
            self.give_back(own);
        }
    }

    /// Polls a work request of this shard for which a task waits.
    #[inline(always)]
    fn poll_op(&self, id: OpId, cx: &Context<'_>) -> Poll<(Ended, Option<OpId>)> {
        if self.ends.is_past(id) {
            return Poll::Ready((Ended::Done, None));
        }
        match self.ends.look(id) {
            None => Poll::Ready((Ended::Done, None)),
            Some(OpStage::Done) => Poll::Ready((Ended::Done, Some(id))),
            Some(_) => self.poll_unended(id, cx),
        }
    }

    /// Polls a work request that has not succeeded.
    #[cold]
    fn poll_unended(&self, id: OpId, cx: &Context<'_>) -> Poll<(Ended, Option<OpId>)> {
        let stage = match self.ends.look(id) {
            Some(OpStage::OnWire) if self.ops.lock().wait(id, cx) => return Poll::Pending,
            Some(OpStage::OnWire) => self.ends.look(id),
            stage => stage,
        };
        Poll::Ready(match stage {
            None => (Ended::Done, None),
            Some(OpStage::Done) => (Ended::Done, Some(id)),
            Some(OpStage::Failed) => (Ended::Failed, Some(id)),
            Some(OpStage::Late | OpStage::OnWire) => (Ended::Late, Some(id)),
        })
    }

    /// Copies the result of a read into `into`. Call only after the end of the operation, which must own its
    /// slot.
    #[inline]
    pub(crate) fn read(&self, id: OpId, into: &mut [u8]) -> Result<(), Error> {
        self.buffers.read(self.ends.offset(id), into).map_err(|_| Error::Unknown)
    }
}

/// Copies `head` and `tail` into `buffer`, if there is room.
#[inline(always)]
pub(super) fn join<'b>(buffer: &'b mut [u8], head: &[u8], tail: &[u8]) -> Option<&'b [u8]> {
    let bytes = buffer.get_mut(..head.len() + tail.len())?;
    let (first, rest) = bytes.split_at_mut(head.len());
    first.copy_from_slice(head);
    rest.copy_from_slice(tail);
    Some(bytes)
}

fn imm_of(verb: Verb<'_>) -> bool {
    matches!(verb, Verb::Write { imm: Some(_), .. })
}

/// Resolves to the waker of the task that awaits it.
pub(crate) struct TaskWaker;

impl Future for TaskWaker {
    type Output = Waker;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Waker> {
        Poll::Ready(cx.waker().clone())
    }
}

/// The end of the wait for a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// Success.
    Done,
    /// Failure, with a [status](InFlight::status).
    Failed,
    /// The deadline has passed while it is in flight.
    Late,
}

/// A work request, and its buffer, if it has one. If it is dropped before its end, both stay in
/// quarantine until its completion; afterwards others may use them.
pub(crate) struct InFlight<'n> {
    shard: &'n Shard,
    /// `None` once nothing is held any more.
    id: Option<OpId>,
}

impl<'n> InFlight<'n> {
    #[inline]
    pub(crate) fn new(transport: &'n Transport, id: OpId) -> Self {
        Self::on(transport.shards.of(id), id)
    }

    /// Returns a work request of that shard.
    #[inline(always)]
    pub(super) fn on(shard: &'n Shard, id: OpId) -> Self {
        Self { shard, id: Some(id) }
    }

    /// Releases what is still held after [`Ended::Done`].
    #[inline(always)]
    pub(crate) fn release(mut self) {
        if let Some(id) = self.id.take() {
            let released = self.shard.ops.lock().release_done(id);
            self.shard.released(released);
        }
        // Nothing is left to drop.
        core::mem::forget(self);
    }

    /// Copies the result of a read. Call only after the future has resolved to [`Ended::Done`].
    #[inline]
    pub(crate) fn read(&self, into: &mut [u8]) -> Result<(), Error> {
        self.shard.read(self.id.ok_or(Error::Unknown)?, into)
    }

    /// Returns the status of the completion.
    pub(crate) fn status(&self) -> Status {
        self.id.map_or(Status::Success, |id| self.shard.ops.lock().status(id))
    }
}

impl Future for InFlight<'_> {
    type Output = Ended;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        let Some(id) = self.id else { return Poll::Ready(Ended::Done) };
        self.shard.poll_op(id, cx).map(|(ended, id)| {
            self.id = id;
            ended
        })
    }
}

impl Drop for InFlight<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.shard.let_go(id);
        }
    }
}
