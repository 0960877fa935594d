//! A function's memory window as big-endian registers. Each access is one instruction, and never outside of
//! the window.

use core::sync::atomic::{Ordering, fence};

use x86_64::VirtAddr;

use super::{BarError, Function};
use crate::arch::cpu;
use crate::mm::PAGE;
use crate::mm::paging::{self, MapError, Rights};

/// A mapped window. Reads outside of it return all ones and writes there do nothing, as on a bus where
/// nothing answers.
pub(crate) struct Window {
    base: *mut u8,
    len: u64,
}

// SAFETY: these are device registers, which any processor may read and write at any time; each access is one
// instruction.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Maps memory window `n` of a function.
    pub(crate) fn map(function: &Function, n: usize) -> Result<Self, BarError> {
        let (base, len) = function.map_bar(n)?;
        Ok(Self { base, len })
    }

    /// Makes the processor combine writes at `offset` (whole pages) and beyond into long writes. No other
    /// processor may have accessed that part.
    pub(crate) fn combine_from(&self, offset: u64) -> Result<(), BarError> {
        let len = self.len.checked_sub(offset).filter(|len| *len > 0 && offset.is_multiple_of(PAGE));
        let len = len.ok_or(BarError::Map(MapError::OutOfRange))?;
        let at = VirtAddr::from_ptr(self.base) + offset;
        paging::protect(at, len.next_multiple_of(PAGE), Rights::Combining).map_err(BarError::Map)
    }

    /// Copies words in memory order to `offset`, after all earlier stores to memory and before all later
    /// ones. Does nothing unless all words are inside the window.
    #[inline]
    pub(crate) fn copy(&self, offset: u64, words: &[u64]) {
        let inside = offset.checked_add(size_of_val(words) as u64).is_some_and(|end| end <= self.len);
        let Some(at) = self.at::<u64>(offset).filter(|_| inside) else { return };
        cpu::store_fence();
        for (n, word) in words.iter().enumerate() {
            // SAFETY: `at` is aligned, and all words are inside the window. The driver is responsible for the
            // effects of the words on memory.
            unsafe { at.add(n).write_volatile(*word) };
        }
        cpu::store_fence();
    }

    /// Returns the length of the window, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the address of a register, if it is inside the window and aligned.
    #[inline]
    fn at<T>(&self, offset: u64) -> Option<*mut T> {
        let bytes = size_of::<T>() as u64;
        let inside = offset.is_multiple_of(bytes) && offset.checked_add(bytes)? <= self.len;
        // SAFETY: the register is inside the window that was mapped.
        inside.then(|| unsafe { self.base.add(offset as usize) }.cast())
    }

    /// Reads the word at `offset`.
    #[inline]
    pub(crate) fn read32(&self, offset: u64) -> u32 {
        // SAFETY: `at` returns an aligned register of the window. A read does nothing to memory; the driver
        // knows its effect on the device.
        self.at::<u32>(offset).map_or(u32::MAX, |at| u32::from_be(unsafe { at.read_volatile() }))
    }

    /// Writes the word at `offset`, after all earlier stores to memory.
    #[inline]
    pub(crate) fn write32(&self, offset: u64, value: u32) {
        fence(Ordering::Release);
        if let Some(at) = self.at::<u32>(offset) {
            // SAFETY: `at` returns an aligned register of the window. The driver is responsible for the
            // effect on memory: it names only memory that it has lent.
            unsafe { at.write_volatile(value.to_be()) };
        }
    }

    /// Writes the double word at `offset` in one access, after all earlier stores to memory.
    #[inline]
    pub(crate) fn write64(&self, offset: u64, value: u64) {
        fence(Ordering::Release);
        if let Some(at) = self.at::<u64>(offset) {
            // SAFETY: as `write32`.
            unsafe { at.write_volatile(value.to_be()) };
        }
    }
}
