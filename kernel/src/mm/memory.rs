//! [`platform::Memory`] over the direct map: every access is checked to be within memory that is lent now. So safe code
//! cannot change the heap, a stack or a device by way of an address, whatever the address is.

use core::sync::atomic::{AtomicU64, Ordering};
use platform::{IoAddr, Memory, MemoryError, MemoryStats};
use x86_64::PhysAddr;

use super::{frames, lent, phys_to_virt};
use crate::arch::copy;

/// All memory that is lent; addresses are physical.
pub struct LentMemory;

impl LentMemory {
    /// The bytes at `addr`, if all `len` of them are lent. Nothing has a reference to them.
    #[inline]
    fn at(addr: IoAddr, len: u64) -> Result<*mut u8, MemoryError> {
        if len != 0 && !lent::is_lent(addr.0, len) {
            return Err(MemoryError::OutOfRange);
        }
        Ok(phys_to_virt(PhysAddr::new_truncate(addr.0)))
    }

    #[inline]
    fn word(addr: IoAddr) -> Result<&'static AtomicU64, MemoryError> {
        if !addr.0.is_multiple_of(8) {
            return Err(MemoryError::Misaligned);
        }
        let at = Self::at(addr, 8)?.cast::<u64>();
        // SAFETY: aligned RAM in the direct map, which is there for ever; it is shared as an atomic.
        Ok(unsafe { AtomicU64::from_ptr(at) })
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
        if buf.len() == 8 && addr.0.is_multiple_of(8) {
            buf.copy_from_slice(&Self::word(addr)?.load(Ordering::Acquire).to_ne_bytes());
            return Ok(());
        }
        let from = Self::at(addr, buf.len() as u64)?;
        // SAFETY: `from` is that many bytes of lent memory, of which there is no reference, so that `buf` does not overlap.
        unsafe { copy::copy(buf.as_mut_ptr(), from, buf.len()) };
        Ok(())
    }

    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError> {
        if let (Ok(word), true) = (<[u8; 8]>::try_from(data), addr.0.is_multiple_of(8)) {
            Self::word(addr)?.store(u64::from_ne_bytes(word), Ordering::Release);
            return Ok(());
        }
        let to = Self::at(addr, data.len() as u64)?;
        let Some(head) = data.len().checked_sub(1) else { return Ok(()) };
        // SAFETY: as `read`. The last byte goes after all others, which x86 keeps in order.
        unsafe {
            copy::copy(to, data.as_ptr(), head);
            copy::copy(to.add(head), data.as_ptr().add(head), 1);
        }
        Ok(())
    }

    fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError> {
        let to = Self::at(addr, len)?;
        // SAFETY: as `write`.
        unsafe { copy::fill(to, byte, len as usize) };
        Ok(())
    }

    fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError> {
        let from = Self::at(src, len)?;
        let to = Self::at(dst, len)?;
        // SAFETY: as `read` and `write`; the ranges may overlap.
        unsafe { copy::copy_overlapping(to, from, len as usize) };
        Ok(())
    }

    fn fetch_add(&self, addr: IoAddr, add: u64) -> Result<u64, MemoryError> {
        Ok(Self::word(addr)?.fetch_add(add, Ordering::AcqRel))
    }

    fn compare_swap(&self, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        let word = Self::word(addr)?;
        Ok(word
            .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|old| old))
    }

    fn alloc(&self, len: u64) -> Option<IoAddr> {
        lent::lend(len).map(|a| IoAddr(a.as_u64()))
    }

    fn free(&self, addr: IoAddr, len: u64) {
        lent::take_back(PhysAddr::new_truncate(addr.0), len);
    }

    fn stats(&self) -> MemoryStats {
        let (total, free) = frames::lendable_totals();
        MemoryStats { total, free }
    }

    fn largest_free(&self) -> u64 {
        frames::stats_among(&lent::covered().ranges).largest_free
    }
}
