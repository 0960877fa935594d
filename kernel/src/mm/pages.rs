//! Frames of one owner, as a slice: large memory of an application that returns to the frame allocator.

use core::slice;
use platform::Pages;
use x86_64::PhysAddr;

use super::{frames, phys_to_virt};

/// A contiguous run of frames that is not lent. It is returned when dropped.
struct Own {
    at: PhysAddr,
    len: usize,
}

/// Returns `len` zeroed bytes. Returns `None` if no such run is free.
pub(super) fn take(len: usize) -> Option<Pages> {
    Some(Pages::new(Own { at: frames::alloc_zeroed(len.max(1) as u64)?, len }))
}

impl AsRef<[u8]> for Own {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the run belongs to this value until it is dropped. It is mapped in the direct map, and
        // zeroed at first. It is not lent, so no access by address reaches it.
        unsafe { slice::from_raw_parts(phys_to_virt(self.at), self.len) }
    }
}

impl AsMut<[u8]> for Own {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_ref`, and the value is borrowed for as long as the slice is.
        unsafe { slice::from_raw_parts_mut(phys_to_virt(self.at), self.len) }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        frames::free(self.at, self.len.max(1) as u64);
    }
}
