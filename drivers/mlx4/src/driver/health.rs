//! The state of a card's health: its failure, and the end of its access to memory.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use platform::Instant;

/// Time between two polls of the card's error buffer. Linux polls every 5 s (`mlx4/catas.c`); here the card
/// must be up again before a node's lease ends.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// The state of a card's health.
pub(super) struct HealthState {
    failed: AtomicBool,
    /// True if the card, since it failed, cannot reach memory.
    cut_off: AtomicBool,
    /// The time of the next poll, in nanoseconds.
    next_poll: AtomicU64,
}

impl HealthState {
    /// Makes the state of a card that works.
    pub(super) fn new(now: Instant) -> Self {
        let next_poll = AtomicU64::new((now + HEALTH_INTERVAL).as_nanos());
        Self { failed: AtomicBool::new(false), cut_off: AtomicBool::new(false), next_poll }
    }

    /// Returns true if the card has failed and was not restarted since.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Records that the card has failed. Returns false if that was known.
    pub(super) fn fail(&self) -> bool {
        !self.failed.swap(true, Ordering::Relaxed)
    }

    /// Returns true if a card that has failed can no longer reach memory.
    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Acquire)
    }

    /// Records whether a card that has failed can no longer reach memory.
    pub(super) fn set_cut_off(&self, cut_off: bool) {
        self.cut_off.store(cut_off, Ordering::Release);
    }

    /// Records that the card works.
    pub(super) fn works_again(&self, now: Instant) {
        self.poll_later(now);
        self.cut_off.store(false, Ordering::Release);
        self.failed.store(false, Ordering::Relaxed);
    }

    /// Returns the time of the next poll.
    pub(super) fn next_poll(&self) -> Instant {
        Instant::from_nanos(self.next_poll.load(Ordering::Relaxed))
    }

    /// Sets the next poll of the card's health to one interval from `now`.
    pub(super) fn poll_later(&self, now: Instant) {
        self.next_poll.store((now + HEALTH_INTERVAL).as_nanos(), Ordering::Relaxed);
    }
}
