//! Memory that a driver shares with its device: whole frames, accessed as words that either side may change
//! at any time.

use core::ops::Deref;
use core::slice;
use core::sync::atomic::AtomicU64;
use x86_64::PhysAddr;

use super::{frames, phys_to_virt};

/// A contiguous run of frames. It is returned when dropped, so the device must have released it before.
pub(crate) struct Dma {
    at: PhysAddr,
    bytes: u64,
}

impl Dma {
    /// Allocates at least `bytes` bytes, zeroed and aligned to 4096. Returns `None` if no such run is free.
    pub(crate) fn zeroed(bytes: u64) -> Option<Self> {
        let bytes = bytes.checked_next_multiple_of(super::PAGE)?;
        Some(Self { at: frames::alloc_zeroed(bytes)?, bytes })
    }

    /// Returns the physical address of the first byte.
    pub(crate) fn addr(&self) -> PhysAddr {
        self.at
    }
}

impl Deref for Dma {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        let words = (self.bytes / 8) as usize;
        // SAFETY: the run belongs to this value until it is dropped. It is mapped in the direct map, aligned,
        // and zeroed at first. The device changes it behind the compiler's back, which atomics allow.
        unsafe { slice::from_raw_parts(phys_to_virt(self.at).cast::<AtomicU64>(), words) }
    }
}

impl Drop for Dma {
    fn drop(&mut self) {
        frames::free(self.at, self.bytes);
    }
}
