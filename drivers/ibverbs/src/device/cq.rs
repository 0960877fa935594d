//! A completion queue: what the device has completed, and what the driver has taken from it or completed itself.

use super::raw::{Channel, CompletionQueue};
use crate::sync::lock;
use rdma_mummy_sys as ibv;
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use verbs::Completion;

/// Completions taken from the device in one call.
const AT_ONCE: usize = 32;

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    raw: Arc<CompletionQueue>,
    depth: u32,
    /// Work that may still complete into it.
    reserved: AtomicU32,
    state: Mutex<State>,
}

/// What only one may do at a time: completions keep their order.
pub struct State {
    /// Taken from the device, but not yet by the caller; older than all that the device still has.
    taken: VecDeque<Completion>,
    wcs: Box<[ibv::ibv_wc]>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} taken", self.taken.len())
    }
}

impl Cq {
    /// Makes one for `depth` completions.
    pub fn new(channel: Arc<Channel>, depth: u32) -> io::Result<Self> {
        let raw = CompletionQueue::new(channel, i32::try_from(depth).unwrap_or(i32::MAX))?;
        // SAFETY: numbers, and unions of numbers.
        let wcs = (0..AT_ONCE).map(|_| unsafe { MaybeUninit::zeroed().assume_init() }).collect();
        let state = State { taken: VecDeque::with_capacity(depth as usize), wcs };
        Ok(Self { raw: Arc::new(raw), depth, reserved: AtomicU32::new(0), state: Mutex::new(state) })
    }

    /// The queue of the device.
    pub fn raw(&self) -> &Arc<CompletionQueue> {
        &self.raw
    }

    /// Sets a place for a completion aside; `false` if there is none.
    pub fn reserve(&self) -> bool {
        let more = |n: u32| (n < self.depth).then_some(n + 1);
        self.reserved.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Gives back places of work that has completed, or was not posted.
    pub fn release(&self, count: u32) {
        self.reserved.fetch_sub(count, Ordering::AcqRel);
    }

    /// Keeps others from taking completions.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Gives up to `out.len()` completions, oldest first: how many. `translate` says what one of the device means.
    pub fn poll(
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
            let wcs = wcs.get_mut(..room.min(AT_ONCE)).unwrap_or_default();
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

    /// Asks for an event at the next completion. `true`: one waits already.
    pub fn arm(&self, translate: &mut dyn FnMut(&ibv::ibv_wc) -> Option<Completion>) -> bool {
        // A queue that cannot be armed belongs to a device that is gone, which the asynchronous events tell.
        let _ = self.raw.arm();
        let mut state = lock(&self.state);
        if state.taken.is_empty() {
            // What came before the arming makes no event.
            state.take_some(&self.raw, translate);
        }
        !state.taken.is_empty()
    }

    /// Takes all that the device has completed by now.
    pub fn drain(&self, translate: &mut dyn FnMut(&ibv::ibv_wc) -> Option<Completion>) {
        let mut state = lock(&self.state);
        // Other queue pairs may go on completing: what was there at the start is at most `depth`.
        let mut left = self.depth as usize + AT_ONCE;
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
    /// Appends what the driver completes itself.
    pub fn push(&mut self, completion: Completion) {
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
