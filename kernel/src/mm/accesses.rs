//! Accesses to lent memory by address that have begun and not ended. An access first checks that the memory
//! is lent. The memory of a loan that ends is free only after all accesses that may have passed the check
//! before.

use core::hint;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::arch::percpu::{self, MAX_CPUS};
use crate::arch::this_cpu_index;

/// The number of accesses that a processor is making, on a cache line of its own.
#[repr(align(64))]
struct Count(AtomicU32);

static BEGUN: [Count; MAX_CPUS] = [const { Count(AtomicU32::new(0)) }; MAX_CPUS];

/// An access that ends when this is dropped, on the processor that began it.
pub(super) struct Access {
    count: &'static AtomicU32,
    /// Another processor must not end the access.
    _here: PhantomData<*const ()>,
}

impl Access {
    /// Begins an access. The check that the memory is lent must follow.
    #[inline]
    pub(super) fn begin() -> Self {
        let Count(count) = &BEGUN[this_cpu_index()];
        // Either the check sees the end of a loan, or the processor that ends the loan sees this.
        count.fetch_add(1, Ordering::SeqCst);
        Self { count, _here: PhantomData }
    }
}

impl Drop for Access {
    #[inline]
    fn drop(&mut self) {
        // Only this processor changes the count.
        self.count.store(self.count.load(Ordering::Relaxed) - 1, Ordering::Release);
    }
}

/// Waits for the end of all accesses that have begun. A processor in the middle of an access must not call
/// this. Accesses wait for nothing, so this ends.
pub(super) fn wait_for_all() {
    core::sync::atomic::fence(Ordering::SeqCst);
    for Count(count) in BEGUN.iter().take(percpu::limit()) {
        while count.load(Ordering::Acquire) != 0 {
            hint::spin_loop();
        }
    }
}
