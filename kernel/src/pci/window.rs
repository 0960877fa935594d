//! A function's memory window as big-endian registers: each read or written in one piece, and never outside.

use core::sync::atomic::{Ordering, fence};

use super::{BarError, Function};

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
