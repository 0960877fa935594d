//! Tasks that wait for a condition.

use crate::base::lock::Mutex;
use crate::base::writers::{AtomicUsize, Ordering};
use alloc::collections::VecDeque;
use core::task::{Context, Poll, Waker};

/// The wakers of tasks that wait for some condition. Each change wakes them all, and each checks for
/// itself, so that a dropped waiter loses no other's wake-up. Allocates only when the list grows beyond its
/// longest length so far.
#[derive(Default)]
pub(crate) struct Waiters {
    count: AtomicUsize,
    queue: Mutex<VecDeque<Waker>>,
}

impl Waiters {
    /// Returns ready as soon as `condition` returns something; checks before and after it registers the
    /// waker.
    pub(crate) fn poll_until<T>(
        &self,
        cx: &mut Context<'_>,
        mut condition: impl FnMut() -> Option<T>,
    ) -> Poll<T> {
        if let Some(v) = condition() {
            return Poll::Ready(v);
        }
        self.add(cx.waker());
        condition().map_or(Poll::Pending, Poll::Ready)
    }

    /// Waits until `condition` returns something.
    pub(crate) async fn until<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        core::future::poll_fn(|cx| self.poll_until(cx, &mut condition)).await
    }

    fn add(&self, waker: &Waker) {
        let mut queue = self.queue.lock();
        if !queue.iter().any(|w| w.will_wake(waker)) {
            queue.push_back(waker.clone());
        }
        self.count.store(queue.len(), Ordering::SeqCst);
    }

    /// Wakes all tasks that wait now.
    #[inline]
    pub(crate) fn wake_all(&self) {
        let count = self.count.load(Ordering::SeqCst);
        if count > 0 {
            self.wake_some(count);
        }
    }

    #[cold]
    fn wake_some(&self, count: usize) {
        for _ in 0..count {
            let waker = {
                let mut queue = self.queue.lock();
                let waker = queue.pop_front();
                self.count.store(queue.len(), Ordering::SeqCst);
                waker
            };
            let Some(waker) = waker else { return };
            waker.wake();
        }
    }
}
