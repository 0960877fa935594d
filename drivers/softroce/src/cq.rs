//! Completion queues that cannot overflow: posting work reserves room for its completion.

use alloc::collections::VecDeque;
use roce::transport::Completions;
use verbs::{Completion, CqId};

/// A completion queue.
pub(crate) struct Cq {
    waiting: VecDeque<Completion>,
    depth: u32,
    /// Work outstanding plus completions waiting: never more than `depth`.
    committed: u32,
}

impl Cq {
    pub(crate) fn new(depth: u32) -> Self {
        Self { waiting: VecDeque::with_capacity(depth as usize), depth, committed: 0 }
    }

    /// Reserves room for a completion. Returns false if there is none.
    pub(crate) const fn reserve(&mut self) -> bool {
        let room = self.committed < self.depth;
        self.committed += room as u32;
        room
    }

    /// Releases room that no completion will use.
    pub(crate) const fn release(&mut self) {
        self.committed = self.committed.saturating_sub(1);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Moves the oldest completions to `out`, and returns their number.
    pub(crate) fn poll(&mut self, out: &mut [Completion]) -> usize {
        let mut n = 0;
        for to in out {
            let Some(from) = self.waiting.pop_front() else { break };
            *to = from;
            n += 1;
        }
        self.committed = self.committed.saturating_sub(n as u32);
        n
    }
}

/// The completion queues of one queue pair.
pub(crate) struct QpCompletionQueues<'a> {
    pub(crate) cqs: &'a mut [Option<Cq>],
    pub(crate) send: CqId,
    pub(crate) recv: CqId,
}

impl Completions for QpCompletionQueues<'_> {
    fn send_ended(&mut self, completion: &Completion, report: bool) {
        let Some(Some(cq)) = self.cqs.get_mut(usize::from(self.send.0)) else { return };
        if report {
            cq.waiting.push_back(*completion);
        } else {
            cq.release();
        }
    }

    fn recv_ended(&mut self, completion: &Completion) {
        if let Some(Some(cq)) = self.cqs.get_mut(usize::from(self.recv.0)) {
            cq.waiting.push_back(*completion);
        }
    }
}
