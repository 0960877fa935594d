//! Locks for data that tasks, interrupt handlers and pollers share.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use lock_api::GuardNoSend;
use spin::Once;

use crate::arch::cpu;

/// A spin lock that keeps interrupts off on the processor that holds it, so that no handler on that processor
/// can wait for it. Hold it only for a bounded time.
pub(crate) struct IrqRawMutex {
    locked: AtomicBool,
    /// True if the holder had interrupts on. Written only by the holder.
    interrupts_were_on: AtomicBool,
}

/// Data that tasks, interrupt handlers and pollers share. See [`IrqRawMutex`].
pub(crate) type IrqMutex<T> = lock_api::Mutex<IrqRawMutex, T>;

/// Seconds for which a processor spins before it reports a deadlock. A holder keeps a lock for seconds if the
/// host suspends its virtual processor.
static SPIN_LIMIT_S: AtomicU64 = AtomicU64::new(60);

/// The frequency of the time stamp counter; until the clock is calibrated, 2.5 GHz.
static HERTZ: AtomicU64 = AtomicU64::new(2_500_000_000);
/// A function that a processor calls in every round of a wait. It does not return if the processor must not
/// wait.
static WAIT_HOOK: Once<fn()> = Once::new();

/// Sets the function that a processor calls in every round of a wait for a lock. The function must take no
/// lock, and does not return if the processor must not wait.
pub(crate) fn set_wait_hook(hook: fn()) {
    WAIT_HOOK.call_once(|| hook);
}

/// Sets the frequency of the time stamp counter, by which waits are measured.
pub(crate) fn set_hertz(hertz: u64) {
    HERTZ.store(hertz, Ordering::Relaxed);
}

/// The time for which a processor has spun. Time in which the processor itself was suspended is not counted,
/// because the holder may have been suspended too.
pub(crate) struct Spin {
    last: u64,
    ticks: u64,
    /// The upper limit on the ticks that one round of a wait loop counts for.
    most_ticks: u64,
    limit: u64,
}

impl Spin {
    /// Starts at a reading of the time stamp counter, whose frequency is `hertz`, with a limit in seconds.
    pub(crate) fn new(now: u64, hertz: u64, limit: u64) -> Self {
        Self { last: now, ticks: 0, most_ticks: hertz / 1000, limit: limit.saturating_mul(hertz) }
    }

    /// Adds the next reading. Returns true if the limit has passed.
    pub(crate) fn is_over(&mut self, now: u64) -> bool {
        let passed = now.wrapping_sub(self.last);
        self.last = now;
        self.ticks += passed.min(self.most_ticks);
        self.ticks > self.limit
    }
}

/// Sets the seconds for which a processor spins before it reports a deadlock.
#[cfg(feature = "selftest")]
pub(crate) fn set_spin_limit(seconds: u64) {
    SPIN_LIMIT_S.store(seconds, Ordering::Relaxed);
}

impl IrqRawMutex {
    #[cold]
    fn wait(&self) {
        let mut spin =
            Spin::new(cpu::tsc(), HERTZ.load(Ordering::Relaxed), SPIN_LIMIT_S.load(Ordering::Relaxed));
        loop {
            while self.locked.load(Ordering::Relaxed) {
                core::hint::spin_loop();
                if let Some(hook) = WAIT_HOOK.get() {
                    hook();
                }
                assert!(!spin.is_over(cpu::tsc()), "a lock was waited for too long: deadlock");
            }
            if !self.locked.swap(true, Ordering::Acquire) {
                return;
            }
        }
    }
}

// SAFETY: a single processor changes `locked` from false to true (swap), and only the holder sets it back.
unsafe impl lock_api::RawMutex for IrqRawMutex {
    #[allow(clippy::declare_interior_mutable_const, reason = "lock_api asks for this constant")]
    const INIT: Self = Self { locked: AtomicBool::new(false), interrupts_were_on: AtomicBool::new(false) };
    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        let on = cpu::interrupts_off();
        if self.locked.swap(true, Ordering::Acquire) {
            self.wait();
        }
        self.interrupts_were_on.store(on, Ordering::Relaxed);
    }

    #[inline]
    fn try_lock(&self) -> bool {
        let on = cpu::interrupts_off();
        if self.locked.swap(true, Ordering::Acquire) {
            cpu::interrupts_restore(on);
            return false;
        }
        self.interrupts_were_on.store(on, Ordering::Relaxed);
        true
    }

    #[inline]
    unsafe fn unlock(&self) {
        let on = self.interrupts_were_on.load(Ordering::Relaxed);
        self.locked.store(false, Ordering::Release);
        cpu::interrupts_restore(on);
    }

    fn is_locked(&self) -> bool {
        self.locked.load(Ordering::Relaxed)
    }
}
