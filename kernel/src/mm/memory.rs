//! [`platform::Memory`] over the direct map. Every access is checked to be within memory that is lent at the
//! time. So safe code cannot change the heap, a stack or a device through any address.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use platform::runs::Runs;
use platform::{IoAddr, Lent, Memory, MemoryError, MemoryStats, Pages, check_bounds};
use x86_64::PhysAddr;

use super::accesses::Access;
use super::{frames, lent, pages, phys_to_virt};
use crate::arch::copy;
use crate::sync::IrqMutex;

/// A run of memory that is lent until this is dropped.
pub(super) struct Run {
    /// The address of the first byte. All `size` bytes are lent, and only this value returns them.
    at: PhysAddr,
    size: u64,
    home: Home,
}

/// The allocator to which a run returns.
pub(super) enum Home {
    /// A run of frames from the frame allocator.
    Frames,
    /// The free runs of the arena that begins at this address.
    Arena(u64, Arc<IrqMutex<Runs>>),
}

impl Run {
    /// Returns the run at `at`.
    ///
    /// # Safety
    /// The `size` bytes must be initialised, lent, and used by nothing else until this is dropped.
    pub(super) const unsafe fn new(at: PhysAddr, size: u64, home: Home) -> Self {
        Self { at, size, home }
    }

    #[inline]
    fn bytes(&self, offset: u64, len: usize) -> Result<*mut u8, MemoryError> {
        check_bounds(self.size, offset, len)?;
        Ok(phys_to_virt(PhysAddr::new_truncate(self.at.as_u64() + offset)))
    }
}

impl Lent for Run {
    fn addr(&self) -> IoAddr {
        IoAddr(self.at.as_u64())
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        let from = self.bytes(offset, buf.len())?;
        // SAFETY: that many bytes of this run are lent, so there is no reference to them.
        unsafe { load(from, buf) };
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let to = self.bytes(offset, data.len())?;
        // SAFETY: as `read`.
        unsafe { store(to, data) };
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        match &self.home {
            Home::Frames => lent::take_back(self.at, self.size),
            Home::Arena(base, runs) => runs.lock().give(self.at.as_u64() - base, self.size),
        }
    }
}

/// Copies from lent memory; an aligned word in one access.
///
/// # Safety
/// `buf.len()` bytes from `from` on are lent memory in the direct map, to which there is no reference.
#[inline]
unsafe fn load(from: *const u8, buf: &mut [u8]) {
    if buf.len() == 8 && from.addr().is_multiple_of(8) {
        // SAFETY: an aligned word as the caller promises; it is shared as an atomic.
        let word = unsafe { AtomicU64::from_ptr(from.cast_mut().cast()) };
        return buf.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
    }
    // SAFETY: as the caller promises, so that `buf` does not overlap.
    unsafe { copy::copy(buf.as_mut_ptr(), from, buf.len()) };
}

/// Copies to lent memory; an aligned word in one access, otherwise the last byte after all others.
///
/// # Safety
/// `data.len()` bytes from `to` on are lent memory in the direct map, to which there is no reference.
#[inline]
unsafe fn store(to: *mut u8, data: &[u8]) {
    if let (Ok(bytes), true) = (<[u8; 8]>::try_from(data), to.addr().is_multiple_of(8)) {
        // SAFETY: an aligned word as the caller promises; it is shared as an atomic.
        let word = unsafe { AtomicU64::from_ptr(to.cast()) };
        return word.store(u64::from_ne_bytes(bytes), Ordering::Release);
    }
    let Some(head) = data.len().checked_sub(1) else { return };
    // SAFETY: as the caller promises. The last byte is written after all others; x86 keeps the order.
    unsafe {
        copy::copy(to, data.as_ptr(), head);
        copy::copy(to.add(head), data.as_ptr().add(head), 1);
    }
}

/// All lent memory. Addresses are physical.
pub(crate) struct LentMemory;

impl LentMemory {
    /// Begins an access to `len` bytes at `addr`, if all of them are lent, and returns a pointer to them.
    /// They are no other memory, and there is no reference to them, until the access is dropped.
    #[inline]
    fn at(addr: IoAddr, len: u64) -> Result<(Access, *mut u8), MemoryError> {
        let access = Access::begin();
        if len != 0 && !lent::is_lent(addr.0, len) {
            return Err(MemoryError::OutOfRange);
        }
        Ok((access, phys_to_virt(PhysAddr::new_truncate(addr.0))))
    }

    #[inline]
    fn word(addr: IoAddr) -> Result<(Access, &'static AtomicU64), MemoryError> {
        if !addr.0.is_multiple_of(8) {
            return Err(MemoryError::Misaligned);
        }
        let (access, at) = Self::at(addr, 8)?;
        // SAFETY: this is aligned RAM in the direct map, which is mapped for ever; it is shared as an atomic.
        Ok((access, unsafe { AtomicU64::from_ptr(at.cast::<u64>()) }))
    }
}

impl Memory for LentMemory {
    fn range(&self) -> (IoAddr, u64) {
        let ranges = &lent::covered().ranges;
        let first = ranges.first().map_or(0, |range| range.start);
        (IoAddr(first), ranges.last().map_or(0, |range| range.end - first))
    }

    fn check(&self, addr: IoAddr, len: u64) -> Result<(), MemoryError> {
        Self::at(addr, len).map(|_| ())
    }

    fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError> {
        let (_access, from) = Self::at(addr, buf.len() as u64)?;
        // SAFETY: that many bytes are lent.
        unsafe { load(from, buf) };
        Ok(())
    }

    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError> {
        let (_access, to) = Self::at(addr, data.len() as u64)?;
        // SAFETY: that many bytes are lent.
        unsafe { store(to, data) };
        Ok(())
    }

    fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError> {
        let (_access, to) = Self::at(addr, len)?;
        // SAFETY: as `write`.
        unsafe { copy::fill(to, byte, len as usize) };
        Ok(())
    }

    fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError> {
        let (_reads, from) = Self::at(src, len)?;
        let (_writes, to) = Self::at(dst, len)?;
        // SAFETY: as `read` and `write`; the ranges may overlap.
        unsafe { copy::copy_overlapping(to, from, len as usize) };
        Ok(())
    }

    fn fetch_add(&self, addr: IoAddr, add: u64) -> Result<u64, MemoryError> {
        let (_access, word) = Self::word(addr)?;
        Ok(word.fetch_add(add, Ordering::AcqRel))
    }

    fn compare_swap(&self, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        let (_access, word) = Self::word(addr)?;
        let swapped = word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
        Ok(swapped.unwrap_or_else(|old| old))
    }

    fn lend(&self, len: u64) -> Option<Box<dyn Lent>> {
        let at = lent::lend(len)?;
        // SAFETY: the run has just been lent, zeroed, and only its `Run` returns it.
        Some(Box::new(unsafe { Run::new(at, len, Home::Frames) }))
    }

    fn pages(&self, len: usize) -> Option<Pages> {
        pages::take(len)
    }

    fn lend_pages(&self, pages: Pages) -> Result<Box<dyn Lent>, Pages> {
        pages::lend(pages).map(|run| Box::new(run) as Box<dyn Lent>)
    }

    fn stats(&self) -> MemoryStats {
        let (total, free) = frames::lendable_totals();
        MemoryStats { total, free }
    }

    fn take_least_free(&self) -> u64 {
        frames::take_least_lendable()
    }

    fn largest_free(&self) -> u64 {
        frames::stats_among(&lent::covered().ranges).largest_free
    }
}
