//! Locks for what tasks, interrupt handlers and pollers share.

use core::sync::atomic::{AtomicBool, Ordering};
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

/// TSC ticks after which a wait is a deadlock: 5 to 20 s on any processor.
const STUCK_TICKS: u64 = 20_000_000_000;

impl IrqRawMutex {
    #[cold]
    fn wait(&self) {
        let since = cpu::tsc();
        loop {
            while self.locked.load(Ordering::Relaxed) {
                core::hint::spin_loop();
                if cpu::tsc().wrapping_sub(since) > STUCK_TICKS || crate::diag::must_not_wait() {
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
