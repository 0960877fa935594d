//! Tasks that wait for a condition.

use crate::lock::Mutex;
use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};

/// Wakers of tasks that wait for some condition. Each change wakes them all; each looks again for itself, so a dropped
/// waiter loses nobody's wake-up. Allocates only while the queue grows beyond its longest so far.
#[derive(Default)]
pub(crate) struct Waiters {
    count: AtomicUsize,
    queue: Mutex<VecDeque<Waker>>,
}

impl Waiters {
    /// Ready as soon as `condition` gives something; tried before and after queueing.
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

    /// Waits until `condition` gives something.
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

    /// Wakes all that wait now.
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
