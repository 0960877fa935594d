//! The arena: one run of RAM. With `remote=arena`, peers can reach nothing else. All memory for them is
//! allocated in it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use platform::runs::Runs;
use platform::{IoAddr, Lent, Memory, MemoryError, MemoryStats, Pages};
use x86_64::PhysAddr;

use super::memory::{Home, LentMemory, Run};
use super::{lent, pages};
use crate::sync::IrqMutex;

/// The alignment of the arena in bytes, so that a card needs few entries for it.
const ALIGN: u64 = 2 << 20;

/// The arena. Its RAM is never returned.
pub(crate) struct Arena {
    base: u64,
    len: u64,
    runs: Arc<IrqMutex<Runs>>,
}

impl Arena {
    /// Takes a run of `len` bytes, rounded down to 2 MiB, for the arena. Returns `None` if none is free.
    pub(crate) fn take(len: u64) -> Option<Self> {
        let len = len - len % ALIGN;
        let base = lent::lend_unzeroed(len, ALIGN).filter(|_| len > 0)?.as_u64();
        Some(Self { base, len, runs: Arc::new(IrqMutex::new(Runs::new(len))) })
    }
}

impl Memory for Arena {
    fn range(&self) -> (IoAddr, u64) {
        (IoAddr(self.base), self.len)
    }

    fn check(&self, addr: IoAddr, len: u64) -> Result<(), MemoryError> {
        let end = addr.0.checked_add(len).ok_or(MemoryError::OutOfRange)?;
        let inside = self.base <= addr.0 && end <= self.base + self.len;
        if inside || len == 0 { Ok(()) } else { Err(MemoryError::OutOfRange) }
    }

    fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.check(addr, buf.len() as u64)?;
        LentMemory.read(addr, buf)
    }

    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError> {
        self.check(addr, data.len() as u64)?;
        LentMemory.write(addr, data)
    }

    fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError> {
        self.check(addr, len)?;
        LentMemory.fill(addr, len, byte)
    }

    fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError> {
        self.check(src, len)?;
        self.check(dst, len)?;
        LentMemory.copy(src, dst, len)
    }

    fn fetch_add(&self, addr: IoAddr, add: u64) -> Result<u64, MemoryError> {
        self.check(addr, 8)?;
        LentMemory.fetch_add(addr, add)
    }

    fn compare_swap(&self, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        self.check(addr, 8)?;
        LentMemory.compare_swap(addr, compare, swap)
    }

    fn lend(&self, len: u64) -> Option<Box<dyn Lent>> {
        let (start, rounded) = self.runs.lock().take(len)?;
        let addr = self.base + start;
        // This also checks that all of it lies in RAM.
        LentMemory.fill(IoAddr(addr), rounded, 0).ok()?;
        let home = Home::Arena(self.base, self.runs.clone());
        // SAFETY: the arena is never taken back, and the run was just taken from those that are free.
        Some(Box::new(unsafe { Run::new(PhysAddr::new_truncate(addr), len, home) }))
    }

    fn pages(&self, len: usize) -> Option<Pages> {
        pages::take(len)
    }

    fn stats(&self) -> MemoryStats {
        self.runs.lock().stats()
    }

    fn take_least_free(&self) -> u64 {
        self.runs.lock().take_least_free()
    }

    fn largest_free(&self) -> u64 {
        self.runs.lock().largest_free()
    }
}
