//! Completion queues that cannot overflow: posting work reserves room for its completion.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use roce::transport::Completions;
use verbs::{Completion, CqId};

/// The number of completion queues whose lengths are published.
const PUBLISHED: usize = 32;

/// The numbers of completions that wait in the first completion queues, read without the lock of the engine:
/// a core that polls its empty queue does not delay the others.
#[derive(Clone)]
pub(crate) struct Arrived(Arc<[Count]>);

/// The number of completions in one queue, in cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU32);

impl Arrived {
    pub(crate) fn new() -> Self {
        Self((0..PUBLISHED).map(|_| Count::default()).collect())
    }

    /// Returns true if a queue is known to be empty.
    pub(crate) fn is_empty(&self, cq: CqId) -> bool {
        self.0.get(usize::from(cq.0)).is_some_and(|count| count.0.load(Ordering::Acquire) == 0)
    }

    fn set(&self, cq: CqId, count: usize) {
        if let Some(place) = self.0.get(usize::from(cq.0)) {
            place.0.store(count as u32, Ordering::Release);
        }
    }
}

/// A completion queue.
pub(crate) struct Cq {
    number: CqId,
    arrived: Arrived,
    waiting: VecDeque<Completion>,
    depth: u32,
    /// Work outstanding plus completions waiting: never more than `depth`.
    committed: u32,
}

impl Cq {
    /// Makes the queue with that number, whose length `arrived` tells. Returns `None` if there is no memory
    /// for `depth` completions.
    pub(crate) fn new(number: CqId, depth: u32, arrived: Arrived) -> Option<Self> {
        let mut waiting = VecDeque::new();
        waiting.try_reserve_exact(depth as usize).ok()?;
        arrived.set(number, 0);
        Some(Self { number, arrived, waiting, depth, committed: 0 })
    }

    fn push(&mut self, completion: &Completion) {
        self.waiting.push_back(*completion);
        self.arrived.set(self.number, self.waiting.len());
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
        self.arrived.set(self.number, self.waiting.len());
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
            cq.push(completion);
        } else {
            cq.release();
        }
    }

    fn recv_ended(&mut self, completion: &Completion) {
        if let Some(Some(cq)) = self.cqs.get_mut(usize::from(self.recv.0)) {
            cq.push(completion);
        }
    }
}
