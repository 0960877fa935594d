//! Locks for what tasks, interrupt handlers and pollers share.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use lock_api::GuardNoSend;

use crate::arch::cpu;

/// A spin lock that keeps interrupts off on the processor that holds it, so that no handler on that processor can wait
/// for it. Hold it for a bounded time only.
pub struct IrqRawMutex {
    locked: AtomicBool,
    /// Whether the holder had interrupts on; written only by the holder.
    interrupts_were_on: AtomicBool,
}

/// Data that tasks, interrupt handlers and pollers share. See [`IrqRawMutex`].
pub type IrqMutex<T> = lock_api::Mutex<IrqRawMutex, T>;

/// Seconds that a processor spins for a lock before it takes the wait for a deadlock. A holder whose virtual processor the host
/// has put aside keeps a lock for seconds.
static PATIENCE_S: AtomicU64 = AtomicU64::new(60);

/// How long a processor has spun. Time in which it was itself put aside does not count: the holder had no chance to go on.
pub struct Spin {
    last: u64,
    ticks: u64,
    /// What one round of a loop may take.
    most_ticks: u64,
    limit: u64,
}

impl Spin {
    /// Begins at a reading of the time stamp counter, which counts `hertz`, to last `limit` seconds.
    pub fn new(now: u64, hertz: u64, limit: u64) -> Self {
        Self { last: now, ticks: 0, most_ticks: hertz / 1000, limit: limit.saturating_mul(hertz) }
    }

    /// Takes the next reading; returns whether the limit has passed.
    pub fn is_over(&mut self, now: u64) -> bool {
        let passed = now.wrapping_sub(self.last);
        self.last = now;
        self.ticks += passed.min(self.most_ticks);
        self.ticks > self.limit
    }
}

/// Sets for how many seconds a processor spins before it takes the wait for a deadlock.
#[cfg(feature = "selftest")]
pub fn set_patience(seconds: u64) {
    PATIENCE_S.store(seconds, Ordering::Relaxed);
}

impl IrqRawMutex {
    #[cold]
    fn wait(&self) {
        let mut spin = Spin::new(cpu::tsc(), crate::time::hertz(), PATIENCE_S.load(Ordering::Relaxed));
        loop {
            while self.locked.load(Ordering::Relaxed) {
                core::hint::spin_loop();
                if spin.is_over(cpu::tsc()) || crate::diag::must_not_wait() {
                    crate::diag::lock_stuck();
                }
            }
            if !self.locked.swap(true, Ordering::Acquire) {
                return;
            }
        }
    }
}

// SAFETY: `locked` goes from false to true by one processor only (swap), and only the holder sets it back.
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
