//! A function's memory window as big-endian registers: each read or written in one piece, and never outside.

use core::sync::atomic::{Ordering, fence};

use x86_64::VirtAddr;

use super::{BarError, Function};
use crate::arch::cpu;
use crate::mm::PAGE;
use crate::mm::paging::{self, MapError, Rights};

/// A window that is mapped. Reads outside of it give all ones and writes there do nothing, as on a bus where nobody answers.
pub struct Window {
    base: *mut u8,
    len: u64,
}

// SAFETY: device registers, which any processor may read and write at any time; each access is one instruction.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Maps memory window `n` of a function.
    pub fn map(function: &Function, n: usize) -> Result<Self, BarError> {
        let (base, len) = function.map_bar(n)?;
        Ok(Self { base, len })
    }

    /// What is copied to `offset` (whole pages) and beyond, the processor combines into long writes. No other processor may
    /// have been there.
    pub fn combine_from(&self, offset: u64) -> Result<(), BarError> {
        let len = self.len.checked_sub(offset).filter(|len| *len > 0 && offset.is_multiple_of(PAGE));
        let len = len.ok_or(BarError::Map(MapError::OutOfRange))?;
        let at = VirtAddr::from_ptr(self.base) + offset;
        paging::protect(at, len.next_multiple_of(PAGE), Rights::Combining).map_err(BarError::Map)
    }

    /// Copies words, as they lie in memory, to `offset`, after all stores to memory before and before all that follow. Nothing
    /// if not all are inside.
    #[inline]
    pub fn copy(&self, offset: u64, words: &[u64]) {
        let inside = offset.checked_add(size_of_val(words) as u64).is_some_and(|end| end <= self.len);
        let Some(at) = self.at::<u64>(offset).filter(|_| inside) else { return };
        cpu::store_fence();
        for (n, word) in words.iter().enumerate() {
            // SAFETY: `at` is aligned, and all words are inside the window. What they have the device do to memory is the driver's
            // to answer for.
            unsafe { at.add(n).write_volatile(*word) };
        }
        cpu::store_fence();
    }

    /// Its bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Where a register is.
    #[inline]
    fn at<T>(&self, offset: u64) -> Option<*mut T> {
        let bytes = size_of::<T>() as u64;
        let inside = offset.is_multiple_of(bytes) && offset.checked_add(bytes)? <= self.len;
        // SAFETY: inside the window that was mapped.
        inside.then(|| unsafe { self.base.add(offset as usize) }.cast())
    }

    /// Reads the word at `offset`.
    #[inline]
    pub fn read32(&self, offset: u64) -> u32 {
        // SAFETY: `at` gives an aligned register of the window; what a read does to the device its driver knows, and it does
        // nothing to memory.
        self.at::<u32>(offset).map_or(u32::MAX, |at| u32::from_be(unsafe { at.read_volatile() }))
    }

    /// Writes the word at `offset`, after all stores to memory before.
    #[inline]
    pub fn write32(&self, offset: u64, value: u32) {
        fence(Ordering::Release);
        if let Some(at) = self.at::<u32>(offset) {
            // SAFETY: an aligned register of the window. What it has the device do to memory is the driver's to answer for:
            // it names only memory that it has lent.
            unsafe { at.write_volatile(value.to_be()) };
        }
    }

    /// As [`write32`](Self::write32), of a double word at once.
    #[inline]
    pub fn write64(&self, offset: u64, value: u64) {
        fence(Ordering::Release);
        if let Some(at) = self.at::<u64>(offset) {
            // SAFETY: as `write32`.
            unsafe { at.write_volatile(value.to_be()) };
        }
    }
}
