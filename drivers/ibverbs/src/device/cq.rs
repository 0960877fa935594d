//! A completion queue: completions of the device, and those that the driver has taken from it or made itself.

use super::raw::{Channel, CompletionQueue};
use crate::sync::lock;
use rdma_mummy_sys as ibv;
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use verbs::Completion;

/// The maximum number of completions taken from the device in one call.
const POLL_BATCH: usize = 32;

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    raw: Arc<CompletionQueue>,
    depth: u32,
    /// The number of outstanding work requests that complete into this queue.
    reserved: AtomicU32,
    state: Mutex<State>,
}

/// The state behind the lock, which keeps completions in order.
pub(super) struct State {
    /// Completions that were taken from the device but not by the caller. They are older than all that the
    /// device still has.
    taken: VecDeque<Completion>,
    wcs: Box<[ibv::ibv_wc]>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} taken", self.taken.len())
    }
}

impl Cq {
    /// Makes a queue for `depth` completions.
    pub(super) fn new(channel: Arc<Channel>, depth: u32) -> io::Result<Self> {
        let raw = CompletionQueue::new(channel, i32::try_from(depth).unwrap_or(i32::MAX))?;
        // SAFETY: numbers, and unions of numbers.
        let wcs = (0..POLL_BATCH).map(|_| unsafe { MaybeUninit::zeroed().assume_init() }).collect();
        let state = State { taken: VecDeque::with_capacity(depth as usize), wcs };
        Ok(Self { raw: Arc::new(raw), depth, reserved: AtomicU32::new(0), state: Mutex::new(state) })
    }

    /// Returns the completion queue of libibverbs.
    pub(super) fn raw(&self) -> &Arc<CompletionQueue> {
        &self.raw
    }

    /// Reserves room for a completion. Returns false if there is none.
    pub(super) fn reserve(&self) -> bool {
        let more = |n: u32| (n < self.depth).then_some(n + 1);
        self.reserved.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Releases the room of work that has completed, or was not posted.
    pub(super) fn release(&self, count: u32) {
        self.reserved.fetch_sub(count, Ordering::AcqRel);
    }

    /// Locks the queue, so that nobody else takes completions.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Moves up to `out.len()` completions to `out`, oldest first, and returns their number. `translate`
    /// interprets a completion of the device.
    pub(super) fn poll(
        &self,
        out: &mut [Completion],
        translate: &mut dyn FnMut(&ibv::ibv_wc) -> Option<Completion>,
    ) -> usize {
        let mut state = lock(&self.state);
        let mut count = 0;
        while count < out.len() {
            if let Some(completion) = state.taken.pop_front() {
                put(out, &mut count, completion);
                continue;
            }
            let room = out.len() - count;
            let State { wcs, .. } = &mut *state;
            let wcs = wcs.get_mut(..room.min(POLL_BATCH)).unwrap_or_default();
            let taken = self.raw.poll(wcs);
            for completion in wcs.iter().take(taken).filter_map(&mut *translate) {
                put(out, &mut count, completion);
            }
            if taken == 0 {
                break;
            }
        }
        count
    }

    /// Requests an event for the next completion. Returns true if one is already waiting.
    pub(super) fn arm(&self, translate: &mut dyn FnMut(&ibv::ibv_wc) -> Option<Completion>) -> bool {
        // A queue that cannot be armed belongs to a device that has gone, which asynchronous events report.
        let _ = self.raw.arm();
        let mut state = lock(&self.state);
        if state.taken.is_empty() {
            // Completions from before the arming raise no event.
            state.take_some(&self.raw, translate);
        }
        !state.taken.is_empty()
    }

    /// Takes all completions that the device has now.
    pub(super) fn drain(&self, translate: &mut dyn FnMut(&ibv::ibv_wc) -> Option<Completion>) {
        let mut state = lock(&self.state);
        // Other queue pairs may continue to complete work; the completions at the start are at most `depth`.
        let mut left = self.depth as usize + POLL_BATCH;
        loop {
            let taken = state.take_some(&self.raw, translate);
            left = left.saturating_sub(taken);
            if taken == 0 || left == 0 {
                return;
            }
        }
    }
}

impl State {
    /// Appends a completion that the driver has made itself.
    pub(super) fn push(&mut self, completion: Completion) {
        self.taken.push_back(completion);
    }

    fn take_some(
        &mut self,
        raw: &CompletionQueue,
        translate: &mut dyn FnMut(&ibv::ibv_wc) -> Option<Completion>,
    ) -> usize {
        let taken = raw.poll(&mut self.wcs);
        self.taken.extend(self.wcs.iter().take(taken).filter_map(translate));
        taken
    }
}

fn put(out: &mut [Completion], count: &mut usize, completion: Completion) {
    if let Some(to) = out.get_mut(*count) {
        *to = completion;
        *count += 1;
    }
}
