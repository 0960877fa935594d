//! [`platform::Memory`] over the direct map: every access is checked against the RAM of the memory map, less the kernel
//! image and the page tables. Device registers are never reached this way.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use platform::{IoAddr, Memory, MemoryError, MemoryStats};
use x86_64::PhysAddr;

use super::{frames, paging, phys_to_virt};

/// All RAM that devices and peers may reach; addresses are physical.
pub struct PhysicalMemory;

impl PhysicalMemory {
    /// The bytes at `addr`, if all `len` of them may be reached.
    fn at(addr: IoAddr, len: u64) -> Result<*mut u8, MemoryError> {
        if len == 0 {
            return Ok(phys_to_virt(PhysAddr::new_truncate(addr.0)));
        }
        let end = addr.0.checked_add(len).ok_or(MemoryError::OutOfRange)?;
        let in_ram = frames::ram().any(|r| r.start.as_u64() <= addr.0 && end <= r.end.as_u64());
        let in_tables = || paging::pools().any(|r| r.start.as_u64() < end && addr.0 < r.end.as_u64());
        if !in_ram || in_tables() {
            return Err(MemoryError::OutOfRange);
        }
        Ok(phys_to_virt(PhysAddr::new_truncate(addr.0)))
    }

    fn word(addr: IoAddr) -> Result<&'static AtomicU64, MemoryError> {
        if !addr.0.is_multiple_of(8) {
            return Err(MemoryError::Misaligned);
        }
        let at = Self::at(addr, 8)?.cast::<u64>();
        // SAFETY: aligned RAM in the direct map, which is there for ever; it is shared as an atomic.
        Ok(unsafe { AtomicU64::from_ptr(at) })
    }
}

impl Memory for PhysicalMemory {
    fn range(&self) -> (IoAddr, u64) {
        (IoAddr(0), frames::ram().map(|r| r.end.as_u64()).max().unwrap_or(0))
    }

    fn check(&self, addr: IoAddr, len: u64) -> Result<(), MemoryError> {
        Self::at(addr, len).map(|_| ())
    }

    fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError> {
        let from = Self::at(addr, buf.len() as u64)?;
        if buf.len() == 8 && addr.0.is_multiple_of(8) {
            buf.copy_from_slice(&Self::word(addr)?.load(Ordering::Acquire).to_ne_bytes());
            return Ok(());
        }
        // SAFETY: `from` is that many bytes of RAM. A peer may write them meanwhile; what is copied is then a mixture,
        // as the trait says. `buf` is a Rust reference, so it is not lent memory, and does not overlap.
        unsafe { ptr::copy(from, buf.as_mut_ptr(), buf.len()) };
        Ok(())
    }

    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError> {
        let to = Self::at(addr, data.len() as u64)?;
        if let (Ok(word), true) = (<[u8; 8]>::try_from(data), addr.0.is_multiple_of(8)) {
            Self::word(addr)?.store(u64::from_ne_bytes(word), Ordering::Release);
            return Ok(());
        }
        let Some((last, head)) = data.split_last() else { return Ok(()) };
        // SAFETY: as `read`. The last byte goes after all others, which x86 keeps in order.
        unsafe {
            ptr::copy(head.as_ptr(), to, head.len());
            core::sync::atomic::compiler_fence(Ordering::Release);
            to.add(head.len()).write_volatile(*last);
        }
        Ok(())
    }

    fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError> {
        let to = Self::at(addr, len)?;
        // SAFETY: as `write`.
        unsafe { ptr::write_bytes(to, byte, len as usize) };
        Ok(())
    }

    fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError> {
        let from = Self::at(src, len)?;
        let to = Self::at(dst, len)?;
        // SAFETY: as `read` and `write`; the ranges may overlap.
        unsafe { ptr::copy(from, to, len as usize) };
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
        frames::alloc_zeroed(len).map(|a| IoAddr(a.as_u64()))
    }

    fn free(&self, addr: IoAddr, len: u64) {
        frames::free(PhysAddr::new_truncate(addr.0), len);
    }

    fn stats(&self) -> MemoryStats {
        let s = frames::stats();
        MemoryStats { total: s.total, free: s.free, largest_free: s.largest_free }
    }
}
