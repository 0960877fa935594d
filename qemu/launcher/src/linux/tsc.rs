//! The rate of the host's time stamp counter, which is also that of a guest under TCG.
//!
//! A guest on a busy host that measures the rate itself may be wrong by a factor of twenty; then all its
//! timeouts and measurements are wrong as well.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The time between two readings of the counter.
const SPAN: Duration = Duration::from_millis(20);
/// The longest time within which the readings of counter and clock count as simultaneous.
const TOGETHER: Duration = Duration::from_micros(5);
/// The maximum number of attempts at a simultaneous reading.
const ATTEMPTS: u32 = 1000;

/// Returns the rate in kHz; `None` if there is no such counter, or if the host is too busy for a measurement.
pub(super) fn khz() -> Option<u64> {
    static KHZ: OnceLock<Option<u64>> = OnceLock::new();
    *KHZ.get_or_init(|| {
        let (from, first) = read()?;
        std::thread::sleep(SPAN);
        let (to, last) = read()?;
        rate(last.checked_sub(first)?, to.duration_since(from))
    })
}

fn rate(ticks: u64, elapsed: Duration) -> Option<u64> {
    u64::try_from(u128::from(ticks) * 1_000_000 / elapsed.as_nanos().max(1)).ok()
}

/// Reads the clock and the counter simultaneously.
fn read() -> Option<(Instant, u64)> {
    (0..ATTEMPTS).find_map(|_| {
        let before = Instant::now();
        let ticks = counter()?;
        (before.elapsed() < TOGETHER).then_some((before, ticks))
    })
}

#[cfg(target_arch = "x86_64")]
fn counter() -> Option<u64> {
    // SAFETY: the instruction exists on each processor of this architecture and accesses no memory.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_over_time() {
        assert_eq!(rate(52_000_000, Duration::from_millis(20)), Some(2_600_000));
        assert_eq!(rate(0, Duration::ZERO), Some(0));
        assert!(khz().is_none_or(|khz| (100_000..20_000_000).contains(&khz)));
    }
}
