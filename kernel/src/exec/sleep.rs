//! Timers of tasks.

use alloc::collections::BTreeMap;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use platform::Instant;

use super::core_state;
use crate::{arch, time};

/// A core's sleeping tasks, ordered by wake-up time.
pub(super) struct Timers {
    wakers: BTreeMap<(Instant, u64), Waker>,
    next_id: u64,
}

impl Timers {
    pub(super) const fn new() -> Self {
        Self { wakers: BTreeMap::new(), next_id: 0 }
    }

    /// Returns the earliest wake-up time; [`Instant::MAX`] if there is none.
    pub(super) fn next(&self) -> Instant {
        self.wakers.first_key_value().map_or(Instant::MAX, |((at, _), _)| *at)
    }

    /// Removes and returns a waker that is due at `now`.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Waker> {
        let entry = self.wakers.first_entry().filter(|e| e.key().0 <= now)?;
        Some(entry.remove())
    }
}

/// A future that completes once the clock has reached an instant.
#[must_use = "a future does nothing unless it is awaited"]
pub(crate) struct Sleep {
    until: Instant,
    /// The position of the waker: core and id.
    registered: Option<(usize, u64)>,
}

/// Waits until `until`.
pub(crate) fn sleep_until(until: Instant) -> Sleep {
    Sleep { until, registered: None }
}

/// Waits for `duration`.
pub(crate) fn sleep(duration: Duration) -> Sleep {
    sleep_until(time::now() + duration)
}

impl Sleep {
    fn take_waker(&mut self) -> Option<Waker> {
        let (cpu, id) = self.registered.take()?;
        core_state::core(cpu)?.timers.lock().wakers.remove(&(self.until, id))
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let old = self.take_waker();
        if time::now() >= self.until {
            return Poll::Ready(());
        }
        let waker = old.filter(|w| w.will_wake(cx.waker())).unwrap_or_else(|| cx.waker().clone());
        let cpu = arch::this_cpu_index();
        if let Some(core) = core_state::core(cpu) {
            let mut timers = core.timers.lock();
            let id = timers.next_id;
            timers.next_id += 1;
            timers.wakers.insert((self.until, id), waker);
            drop(timers);
            core.expect_timer(self.until);
            self.registered = Some((cpu, id));
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        drop(self.take_waker());
    }
}
