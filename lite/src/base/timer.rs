//! Timers: a heap from which any timer can be removed, without allocation once it has grown.

use super::standing::Standing;
use crate::base::lock::Mutex;
use crate::base::writers::{AtomicU64, Ordering};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use platform::{Instant, Platform};

/// All timers of a node. [`expire`](Self::expire) fires them.
pub(crate) struct Timers {
    heap: Mutex<Heap>,
    /// A time in nanoseconds that is not later than any timer.
    first: AtomicU64,
    /// The platform, whose poller is woken when a timer is started that is earlier than all others.
    platform: Arc<dyn Platform>,
    standing: Arc<Standing>,
}

#[derive(Default)]
struct Heap {
    /// Indices into `entries`: a binary heap by time and then by age.
    order: Vec<u32>,
    entries: Vec<TimerEntry>,
    free: Vec<u32>,
    started: u64,
}

struct TimerEntry {
    at: Instant,
    number: u64,
    /// The index in `order`; `NOWHERE` once fired.
    position: u32,
    waker: Option<Waker>,
}

const NOWHERE: u32 = u32::MAX;

impl Heap {
    fn key(&self, position: usize) -> (Instant, u64) {
        let e = &self.entries[self.order[position] as usize];
        (e.at, e.number)
    }

    fn put(&mut self, position: usize, entry: u32) {
        self.order[position] = entry;
        self.entries[entry as usize].position = position as u32;
    }

    fn swap(&mut self, a: usize, b: usize) {
        let (x, y) = (self.order[a], self.order[b]);
        self.put(a, y);
        self.put(b, x);
    }

    fn rise(&mut self, mut position: usize) {
        while position > 0 {
            let above = (position - 1) / 2;
            if self.key(above) <= self.key(position) {
                break;
            }
            self.swap(position, above);
            position = above;
        }
    }

    fn sink(&mut self, mut position: usize) {
        loop {
            let left = 2 * position + 1;
            if left >= self.order.len() {
                break;
            }
            let right = left + 1;
            let least =
                if right < self.order.len() && self.key(right) < self.key(left) { right } else { left };
            if self.key(position) <= self.key(least) {
                break;
            }
            self.swap(position, least);
            position = least;
        }
    }

    fn insert(&mut self, at: Instant, waker: Waker) -> u32 {
        self.started += 1;
        let entry = TimerEntry { at, number: self.started, position: NOWHERE, waker: Some(waker) };
        let index = if let Some(index) = self.free.pop() {
            self.entries[index as usize] = entry;
            index
        } else {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        };
        self.order.push(index);
        let last = self.order.len() - 1;
        self.put(last, index);
        self.rise(last);
        index
    }

    /// Removes the timer at `position` from the order.
    fn take(&mut self, position: usize) -> u32 {
        let entry = self.order[position];
        let last = self.order.len() - 1;
        if position != last {
            self.swap(position, last);
        }
        self.order.pop();
        self.entries[entry as usize].position = NOWHERE;
        if position < self.order.len() {
            self.rise(position);
            self.sink(position);
        }
        entry
    }
}

impl Timers {
    pub(crate) fn new(platform: Arc<dyn Platform>, standing: Arc<Standing>) -> Self {
        Self { heap: Mutex::default(), first: AtomicU64::new(u64::MAX), platform, standing }
    }

    /// Fires all timers up to `now`; returns true if there were any.
    pub(crate) fn expire(&self, now: Instant) -> bool {
        now.as_nanos() >= self.first.load(Ordering::Acquire) && self.fire(now)
    }

    fn fire(&self, now: Instant) -> bool {
        let mut any = false;
        loop {
            let waker = {
                let mut heap = self.heap.lock();
                if heap.order.is_empty() || heap.key(0).0 > now {
                    let first = if heap.order.is_empty() { u64::MAX } else { heap.key(0).0.as_nanos() };
                    self.first.store(first, Ordering::Release);
                    return any;
                }
                let entry = heap.take(0);
                heap.entries[entry as usize].waker.take()
            };
            any = true;
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Returns a time that is not later than any timer, without the lock.
    pub(crate) fn bound(&self) -> Instant {
        Instant::from_nanos(self.first.load(Ordering::Acquire))
    }

    /// Returns the time of the earliest timer.
    pub(crate) fn next(&self) -> Option<Instant> {
        let heap = self.heap.lock();
        (!heap.order.is_empty()).then(|| heap.key(0).0)
    }

    /// Returns the result of `work`, or `None` once `at` has passed; `work` is dropped then.
    pub(crate) async fn before<F: Future>(&self, at: Instant, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        let mut timer = Timer { timers: self, at, index: None };
        core::future::poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(v) => Poll::Ready(Some(v)),
            Poll::Pending => timer.poll(cx).map(|()| None),
        })
        .await
    }

    /// Waits until `at`.
    pub(crate) async fn until(&self, at: Instant) {
        let mut timer = Timer { timers: self, at, index: None };
        core::future::poll_fn(|cx| timer.poll(cx)).await;
    }
}

/// One timer, started by its first poll and removed when dropped.
struct Timer<'a> {
    timers: &'a Timers,
    at: Instant,
    index: Option<u32>,
}

impl Timer<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut heap = self.timers.heap.lock();
        let Some(index) = self.index else {
            let index = heap.insert(self.at, cx.waker().clone());
            self.index = Some(index);
            let earliest = heap.entries[index as usize].position == 0;
            if earliest {
                self.timers.first.store(self.at.as_nanos(), Ordering::Release);
                self.timers.standing.due_by(self.at);
            }
            drop(heap);
            if earliest {
                self.timers.platform.wake_poller();
            }
            return Poll::Pending;
        };
        let entry = &mut heap.entries[index as usize];
        if entry.position == NOWHERE {
            return Poll::Ready(());
        }
        if !entry.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            entry.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        let Some(index) = self.index else { return };
        let mut heap = self.timers.heap.lock();
        let position = heap.entries[index as usize].position;
        if position != NOWHERE {
            heap.take(position as usize);
        }
        let waker = heap.entries[index as usize].waker.take();
        heap.free.push(index);
        drop(heap);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use platform::{Memory, Task};
    use proptest::prelude::*;

    /// Counts the calls that wake the poller.
    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Platform for Woken {
        fn now(&self) -> Instant {
            Instant::ZERO
        }
        fn fill_random(&self, _: &mut [u8]) {}
        fn cpus(&self) -> usize {
            1
        }
        fn spawn(&self, _: &'static str, _: Task) {}
        fn memory(&self) -> &dyn Memory {
            unreachable!("timers use no memory")
        }
        fn wake_poller(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn an_earlier_timer_wakes_the_poller() {
        let platform = Arc::new(Woken::default());
        let timers = Timers::new(platform.clone(), Arc::default());
        let mut cx = Context::from_waker(Waker::noop());
        let mut all = Vec::new();
        for (at, woken) in [(50, 1), (60, 1), (40, 2), (45, 2)] {
            let mut timer = Timer { timers: &timers, at: Instant::from_nanos(at), index: None };
            assert!(timer.poll(&mut cx).is_pending());
            all.push(timer);
            assert_eq!(platform.0.load(Ordering::Relaxed), woken, "after the timer at {at}");
        }
    }

    proptest! {
        /// Timers fire in order of time, and removed ones never, for all orders of starts and drops.
        #[test]
        fn fires_in_order(times in proptest::collection::vec(0u64..100, 1..60), drops in proptest::collection::vec(any::<prop::sample::Index>(), 0..30)) {
            let timers = Timers::new(Arc::new(Woken::default()), Arc::default());
            let mut cx = Context::from_waker(Waker::noop());
            let mut all: Vec<Option<Timer<'_>>> = times.iter().map(|t| {
                let mut timer = Timer { timers: &timers, at: Instant::from_nanos(*t), index: None };
                assert!(timer.poll(&mut cx).is_pending());
                Some(timer)
            }).collect();
            for d in drops {
                all[d.index(times.len())] = None;
            }
            for now in 0..100 {
                timers.expire(Instant::from_nanos(now));
                for (timer, at) in all.iter_mut().zip(&times) {
                    if let Some(timer) = timer {
                        prop_assert_eq!(timer.poll(&mut cx).is_ready(), *at <= now);
                    }
                }
                prop_assert!(timers.next().is_none_or(|at| at > Instant::from_nanos(now)));
            }
            prop_assert_eq!(timers.next(), None);
        }
    }
}
