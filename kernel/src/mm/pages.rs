//! Frames of one owner, as a slice: large memory of an application that returns to the frame allocator.

use core::mem::ManuallyDrop;
use core::slice;
use platform::Pages;
use x86_64::PhysAddr;

use super::memory::{Home, Run};
use super::{frames, lent, phys_to_virt};

/// A contiguous run of frames that is not lent. It is returned when dropped.
struct Own {
    at: PhysAddr,
    len: usize,
}

/// Returns `len` zeroed bytes. Returns `None` if no such run is free.
pub(super) fn take(len: usize) -> Option<Pages> {
    Some(Pages::new(Own { at: lent::alloc_own(len.max(1) as u64)?, len }))
}

/// Lends pages in place. Returns them if they cannot be lent.
pub(super) fn lend(pages: Pages) -> Result<Run, Pages> {
    let own = pages.into_run::<Own>()?;
    if own.len == 0 || !lent::lend_own(own.at, own.len as u64) {
        return Err(Pages::new(*own));
    }
    // The frames pass to the run.
    let own = ManuallyDrop::new(*own);
    // SAFETY: the bytes have just been lent. They were used by `own` only, which is gone. They were zeroed,
    // or written by their owner, when they were allocated.
    Ok(unsafe { Run::new(own.at, own.len as u64, Home::Frames) })
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
