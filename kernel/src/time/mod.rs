//! The clock: nanoseconds since the first instruction, from the time stamp counter.

pub(crate) mod calibrate;

use core::sync::atomic::{AtomicU64, Ordering};
use platform::Instant;

use crate::arch::cpu;

/// The time stamp counter at the first instruction.
static ENTRY: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds per tick, times 2^32. Until the calibration, the value for 2.5 GHz.
static NANOS_PER_TICK: AtomicU64 = AtomicU64::new((1 << 32) * 2 / 5);
/// Ticks per second.
static HERTZ: AtomicU64 = AtomicU64::new(2_500_000_000);

/// Sets the zero of the clock to the counter at the first instruction.
pub(crate) fn start(tsc: u64) {
    ENTRY.store(tsc, Ordering::Relaxed);
}

/// Sets the counter's frequency.
pub(crate) fn set_hertz(hertz: u64) {
    let per_tick = (1_000_000_000u128 << 32) / u128::from(hertz.max(1));
    HERTZ.store(hertz, Ordering::Relaxed);
    NANOS_PER_TICK.store(per_tick as u64, Ordering::Relaxed);
}

/// Returns the counter's frequency.
pub(crate) fn hertz() -> u64 {
    HERTZ.load(Ordering::Relaxed)
}

/// Returns the instant at which the counter was `tsc`.
#[inline]
pub(crate) fn at_tsc(tsc: u64) -> Instant {
    // Processors' counters may differ by a few ticks: a reading before the entry counts as the entry.
    let ticks = tsc.saturating_sub(ENTRY.load(Ordering::Relaxed));
    Instant::from_nanos(
        ((u128::from(ticks) * u128::from(NANOS_PER_TICK.load(Ordering::Relaxed))) >> 32) as u64,
    )
}

/// Returns the counter at `instant`, rounded up.
#[inline]
pub(crate) fn to_tsc(instant: Instant) -> u64 {
    let ticks =
        (u128::from(instant.as_nanos()) << 32).div_ceil(u128::from(NANOS_PER_TICK.load(Ordering::Relaxed)));
    ENTRY.load(Ordering::Relaxed).saturating_add(u64::try_from(ticks).unwrap_or(u64::MAX))
}

/// Returns the present time.
#[inline]
pub(crate) fn now() -> Instant {
    at_tsc(cpu::tsc())
}

/// Waits without yielding, for a few microseconds: for device resets and the start of processors.
pub(crate) fn spin_for(duration: core::time::Duration) {
    let end = now() + duration;
    while now() < end {
        core::hint::spin_loop();
    }
}
