//! A limit of a long-term rate that lets short bursts pass.

use platform::Instant;
use std::time::Duration;

/// An allowance that refills with time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// The time at which the allowance is full again; in the past if it is full.
    full: Instant,
    /// The time in which an empty allowance refills.
    period: Duration,
    /// The allowance after a long pause.
    burst: u64,
}

impl Rate {
    /// Returns a full allowance of `burst` (not zero), which refills in `period`.
    pub(super) const fn new(burst: u64, period: Duration) -> Self {
        Self { full: Instant::ZERO, period, burst }
    }

    /// Takes `amount`. If less is left, takes nothing and returns false.
    pub(super) fn take(&mut self, now: Instant, amount: u64) -> bool {
        let nanos = u128::from(amount) * self.period.as_nanos() / u128::from(self.burst);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let full = self.full.max(now) + cost;
        let within = full - now <= self.period;
        if within {
            self.full = full;
        }
        within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_as_much_as_comes_back() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut rate = Rate::new(10, Duration::from_secs(1));
        assert!((0..10).all(|_| rate.take(at(5000), 1)));
        assert!(!rate.take(at(5000), 1) && !rate.take(at(5099), 1));
        assert!(rate.take(at(5100), 1) && !rate.take(at(5100), 1));
        assert!(!rate.take(at(5600), 6) && rate.take(at(5600), 5));
        assert!(!rate.take(at(9000), 11) && rate.take(at(9000), 10));
        assert!(!rate.take(at(9000), u64::MAX));
    }
}
