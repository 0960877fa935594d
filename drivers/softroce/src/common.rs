//! The state that the queue pairs of an RNIC share, and calls of a queue pair with it.

use crate::cq::{Arrived, Cq, QpCompletionQueues};
use crate::queue_pair::QueuePair;
use crate::slots::{Slot, Slots};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use platform::{Instant, Memory};
use roce::transport::{Counters, Env, Levels, OneKey};
use verbs::{CqId, RemoteKey, VerbsError};

/// The state that queue pairs share.
pub(crate) struct Common {
    pub(crate) key: RemoteKey,
    pub(crate) counters: Counters,
    memory: Arc<dyn Memory>,
    /// Completion queues by number; `None` for a destroyed one.
    pub(crate) cqs: Vec<Option<Cq>>,
    /// The numbers of completions in them.
    pub(crate) arrived: Arrived,
    /// The slots of queue pairs that have packets to send, each at most once. A queue pair above service
    /// level 0 goes to the front when it gets something to send, and to the back after each turn.
    pub(crate) ready: VecDeque<usize>,
    /// The service levels in use.
    pub(crate) levels: Levels,
    /// A lower bound of all deadlines of queue pairs, which is exact unless `deadline_moved`.
    pub(crate) earliest: Instant,
    pub(crate) deadline_moved: bool,
}

impl Common {
    pub(crate) fn new(key: RemoteKey, memory: Arc<dyn Memory>) -> Self {
        Self {
            key,
            counters: Counters::default(),
            memory,
            cqs: Vec::new(),
            arrived: Arrived::new(),
            ready: VecDeque::new(),
            levels: Levels::default(),
            earliest: Instant::MAX,
            deadline_moved: false,
        }
    }

    pub(crate) fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    /// Returns the access of peers to the memory.
    pub(crate) fn remote(&self) -> OneKey<'_> {
        OneKey { key: self.key, memory: &*self.memory }
    }

    pub(crate) fn cq(&mut self, cq: CqId) -> Option<&mut Cq> {
        self.cqs.get_mut(usize::from(cq.0))?.as_mut()
    }

    /// Posts work to a queue pair by `f`, with room for its completion in `cq`.
    pub(crate) fn post(
        &mut self,
        slot: &mut Slot,
        cq: CqId,
        f: impl FnOnce(&mut QueuePair, &mut Env<'_>) -> Result<(), VerbsError>,
    ) -> Result<(), VerbsError> {
        if !self.cq(cq).ok_or(VerbsError::NotFound)?.reserve() {
            return Err(VerbsError::NoResources);
        }
        let posted = self.call(slot, Instant::ZERO, f);
        if posted.is_err()
            && let Some(cq) = self.cq(cq)
        {
            cq.release();
        }
        posted
    }

    /// Calls `f` with a queue pair, and then updates the list of senders and the deadlines.
    pub(crate) fn call<T>(
        &mut self,
        slot: &mut Slot,
        now: Instant,
        f: impl FnOnce(&mut QueuePair, &mut Env<'_>) -> T,
    ) -> T {
        let result = self.call_in_burst(slot, now, f);
        self.update(slot);
        result
    }

    /// Calls `f` with a queue pair. [`update`](Self::update) must follow after the last of such calls.
    pub(crate) fn call_in_burst<T>(
        &mut self,
        slot: &mut Slot,
        now: Instant,
        f: impl FnOnce(&mut QueuePair, &mut Env<'_>) -> T,
    ) -> T {
        let mut completions =
            QpCompletionQueues { cqs: &mut self.cqs, send: slot.send_cq, recv: slot.recv_cq };
        let mut env = Env {
            now,
            memory: &*self.memory,
            remote: &OneKey { key: self.key, memory: &*self.memory },
            counters: &mut self.counters,
            completions: &mut completions,
        };
        f(&mut slot.qp, &mut env)
    }

    /// Updates the list of senders and the deadlines after calls of a queue pair.
    pub(crate) fn update(&mut self, slot: &mut Slot) {
        if !slot.queued && slot.qp.has_work() {
            slot.queued = true;
            let index = Slots::index(slot.qp.number());
            if slot.level > 0 { self.ready.push_front(index) } else { self.ready.push_back(index) }
        }
        self.update_deadline(slot);
    }

    /// Queues a queue pair again after its turn, if it has more to send, and updates the deadlines.
    pub(crate) fn end_turn(&mut self, slot: &mut Slot) {
        slot.queued = slot.qp.has_work();
        if slot.queued {
            self.ready.push_back(Slots::index(slot.qp.number()));
        }
        self.update_deadline(slot);
    }

    #[inline]
    fn update_deadline(&mut self, slot: &mut Slot) {
        let deadline = slot.qp.deadline().unwrap_or(Instant::MAX);
        if deadline < self.earliest {
            self.earliest = deadline;
            self.deadline_moved = false;
        } else if slot.deadline == self.earliest && deadline != slot.deadline {
            self.deadline_moved = true;
        }
        slot.deadline = deadline;
    }
}
