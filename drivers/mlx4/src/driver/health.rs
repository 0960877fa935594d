//! The health of a card: its failure, and the end of its access to memory.

use super::Mlx4;
use crate::bringup::reset;
use crate::card::HealthSource;
use crate::hardware::Hardware;
use crate::vf::channel::channel_error;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use lock_api::RawMutex;
use platform::Instant;
use verbs::PortState;

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

    fn poll_later(&self, now: Instant) {
        self.next_poll.store((now + HEALTH_INTERVAL).as_nanos(), Ordering::Relaxed);
    }
}

impl<H: Hardware, R: RawMutex> Mlx4<H, R> {
    /// Returns true if the card has failed and was not restarted since.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.health.has_failed()
    }

    /// Checks the card's health once per [`HEALTH_INTERVAL`].
    pub(super) fn watch_health(&self, now: Instant) {
        if now < self.health.next_poll() {
            return;
        }
        self.health.poll_later(now);
        match self.card.health {
            HealthSource::Unseen => {}
            HealthSource::Register(register) => match self.hw.register(register) {
                0 => {}
                error => self.fail(&alloc::format!("its error buffer begins with {error:#010x}")),
            },
            HealthSource::Channel => {
                if let Some(error) = channel_error(&self.hw) {
                    self.fail(&alloc::format!("{error}"));
                }
            }
        }
    }

    /// Marks the card as failed. Until it is reset, the driver does not use it and it cannot reach memory.
    pub(super) fn fail(&self, why: &str) {
        if !self.health.failed.swap(true, Ordering::Relaxed) {
            log::error!("mlx4: the card has failed: {why}");
            self.link.lock().state = PortState::Down;
            self.cut_off();
        }
    }

    /// Disables the card's access to memory. Returns true if the card then has none.
    pub(super) fn cut_off(&self) -> bool {
        let done = reset::cut_off(&self.hw);
        if !done {
            log::error!("mlx4: the card cannot be kept from reaching memory");
        }
        self.health.cut_off.store(done, Ordering::Release);
        done
    }

    /// Returns true if a card that has failed can no longer reach memory.
    pub(super) fn is_cut_off(&self) -> bool {
        self.health.cut_off.load(Ordering::Acquire)
    }
}
