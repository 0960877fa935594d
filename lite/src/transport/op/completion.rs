//! The ends of operations: completions are taken, and the tasks that wait are woken.

use super::status::OpId;
use super::table::{Shard, Wakes};
use super::transport::Transport;
use crate::base::own::Hold;
use crate::base::trace::Event;
use platform::Instant;
use verbs::{Completion, Status, WorkKind};

/// The number of completions taken at once.
pub(crate) const BATCH: usize = 64;

impl Transport {
    /// Takes at most `batches` batches of completions of a shard; returns true if there were any. Ends the
    /// operations that have succeeded, and passes all other completions to `other`.
    #[inline(always)]
    pub(crate) fn take_completions(
        &self,
        shard: &Shard,
        batch: &mut [Completion; BATCH],
        batches: usize,
        mut other: impl FnMut(&Completion),
    ) -> bool {
        let n = self.take_batch(shard, batch, &mut other);
        if n == BATCH {
            self.take_more(shard, batch, batches - 1, other);
        }
        n > 0
    }

    /// Takes at most `batches` further batches of completions.
    #[inline(never)]
    fn take_more(
        &self,
        shard: &Shard,
        batch: &mut [Completion; BATCH],
        batches: usize,
        mut other: impl FnMut(&Completion),
    ) {
        for _ in 0..batches {
            if self.take_batch(shard, batch, &mut other) < BATCH {
                return;
            }
        }
    }

    /// Takes one batch of completions, and returns their number.
    #[inline(always)]
    fn take_batch(
        &self,
        shard: &Shard,
        batch: &mut [Completion; BATCH],
        other: &mut impl FnMut(&Completion),
    ) -> usize {
        let n = self.rnic.poll_cq(shard.cq, batch);
        // The RNIC takes no more than there is room for.
        let Some(taken) = batch.get(..n) else { return 0 };
        for completion in taken {
            let received = matches!(completion.kind, WorkKind::Recv | WorkKind::RecvWriteImm);
            match OpId::from_wr_id(completion.id) {
                Some(id) if !received && completion.status == Status::Success => {
                    self.succeed(shard, id);
                }
                _ => other(completion),
            }
        }
        n
    }

    /// Ends an operation that has succeeded.
    #[inline(always)]
    fn succeed(&self, shard: &Shard, id: OpId) {
        let ended = shard.ops.lock().succeed(id);
        let Some((task, others)) = ended else { return self.succeed_unawaited(shard, id) };
        if self.standing.is_traced() {
            self.record_success(id);
        }
        if let Some(task) = task {
            task.wake();
        }
        if others {
            shard.wake_waiters();
        }
    }

    /// Ends an operation that has succeeded, that no task waits for, and that is not just a message.
    #[inline(never)]
    fn succeed_unawaited(&self, shard: &Shard, id: OpId) {
        let wakes = shard.ops.lock().complete(id, Status::Success);
        if self.standing.is_traced() {
            self.record_success(id);
        }
        shard.wake(wakes);
    }

    #[cold]
    fn record_success(&self, id: OpId) {
        self.local.record(Event::Ended { id: id.wr_id().0, ok: true });
    }

    /// Wakes the tasks whose operations on the fast path are late; returns true if there were any.
    pub(crate) fn wake_late(&self, now: Instant) -> bool {
        if now < self.earliest_deadline() {
            return false;
        }
        let mut any = false;
        for shard in self.shards.iter() {
            let mut from = 0;
            loop {
                let waker = shard.ops.lock().next_late(now, &mut from);
                let Some(waker) = waker else { break };
                any = true;
                waker.wake();
            }
        }
        any
    }

    /// Returns a time that is not later than the earliest deadline of an operation on the fast path.
    pub(crate) fn earliest_deadline(&self) -> Instant {
        self.shards.iter().map(|shard| shard.ops.lock().earliest()).min().unwrap_or(Instant::MAX)
    }
}

impl Shard {
    /// Wakes the tasks that wait for what has changed in the table.
    pub(crate) fn wake(&self, wakes: Wakes) {
        if let Some(task) = wakes.task {
            task.wake();
        }
        if wakes.others {
            self.wake_waiters();
        }
        if let Some(own) = wakes.unused {
            self.give_back(own);
        }
    }

    /// Drops the memory of an application that an operation has used, and then wakes all tasks that wait: one
    /// may have found the memory in use after the operation's end.
    #[cold]
    pub(super) fn give_back(&self, own: Hold) {
        drop(own);
        self.wake_waiters();
    }

    /// Wakes all tasks that wait for a resource, or for the end of operations.
    #[cold]
    pub(super) fn wake_waiters(&self) {
        self.waiters.iter().for_each(|waiters| waiters.wake_all());
    }
}
