//! A [`Memory`] in one heap block, for tests, the simulator and host tools: no `unsafe`, any base address.

use crate::runs::{PAGE, Runs};
use crate::{HostLent, IoAddr, Lent, Memory, MemoryError, MemoryStats};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use spin::Mutex;

/// One contiguous block of memory behind a lock, with a first-fit allocator of 4096-byte granularity.
///
/// Free memory is zero. The method [`stray_write`](Self::stray_write) finds a write by a former holder.
///
/// Every access holds the lock, so each access is atomic as a whole, which is more than [`Memory`]
/// promises. The base address is arbitrary, so that code which confuses offsets with addresses fails.
/// Clones share the memory.
#[derive(Clone)]
pub struct Arena {
    base: u64,
    block: Arc<Mutex<Block>>,
    runs: Arc<Mutex<Runs>>,
    /// The address of the first byte that was seen changed while its memory was free.
    stray_write: Arc<Mutex<Option<IoAddr>>>,
}

struct Block {
    bytes: Vec<u8>,
    /// For each page, true if it was written since it was freed.
    written: Vec<bool>,
}

impl Block {
    /// Returns the bytes of a range, to write to them.
    fn get_mut(&mut self, range: Range<usize>) -> Option<&mut [u8]> {
        if !range.is_empty() {
            let pages = range.start / PAGE as usize..range.end.div_ceil(PAGE as usize);
            self.written.get_mut(pages)?.fill(true);
        }
        self.bytes.get_mut(range)
    }
}

impl Arena {
    /// Makes `len` zero bytes of memory (rounded up to 4096), the first of which has the address `base`.
    ///
    /// # Panics
    /// If `base` is not a multiple of 4096, if the end is beyond the address space, or if the heap is too
    /// small.
    #[must_use]
    pub fn new(base: IoAddr, len: u64) -> Self {
        let len = len.checked_next_multiple_of(PAGE).expect("arena length overflows");
        assert!(base.0.is_multiple_of(PAGE), "arena base must be aligned to 4096");
        assert!(base.checked_add(len).is_some(), "arena ends beyond the address space");
        let bytes = vec![0; usize::try_from(len).expect("arena larger than this host's memory")];
        let written = vec![false; bytes.len() / PAGE as usize];
        Self {
            base: base.0,
            block: Arc::new(Mutex::new(Block { bytes, written })),
            runs: Arc::new(Mutex::new(Runs::new(len))),
            stray_write: Arc::default(),
        }
    }

    /// Returns the address of a byte that was changed while its memory was free, if one was seen. Free
    /// memory is checked by this call, and when it is allocated.
    #[must_use]
    pub fn stray_write(&self) -> Option<IoAddr> {
        let free = self.runs.lock().free();
        for (start, len) in free {
            self.look(start, len);
        }
        *self.stray_write.lock()
    }

    /// Returns true if a write by a former holder was seen in free memory so far.
    #[must_use]
    pub fn has_stray_write(&self) -> bool {
        self.stray_write.lock().is_some()
    }

    /// Checks that a free run of memory is zero, and records the first byte that is not. Makes the run zero.
    fn look(&self, start: u64, len: u64) {
        let mut block = self.block.lock();
        let Block { bytes, written } = &mut *block;
        let pages = (start / PAGE) as usize..((start + len) / PAGE) as usize;
        let all = bytes.chunks_mut(PAGE as usize).zip(written).enumerate();
        for (i, (page, written)) in all.take(pages.end).skip(pages.start) {
            if !core::mem::take(written) {
                continue;
            }
            if let Some(first) = page.iter().position(|byte| *byte != 0) {
                self.stray_write.lock().get_or_insert(IoAddr(self.base + i as u64 * PAGE + first as u64));
                page.fill(0);
            }
        }
    }

    /// Allocates `len` contiguous bytes (rounded up to 4096), zeroed, and returns their address.
    #[must_use]
    pub fn alloc(&self, len: u64) -> Option<IoAddr> {
        let (start, len) = self.runs.lock().take(len)?;
        self.look(start, len);
        Some(IoAddr(self.base + start))
    }

    /// Frees the run at `addr`, which was allocated with the same `len`.
    ///
    /// # Panics
    ///
    /// Panics if no such run is allocated.
    pub fn free(&self, addr: IoAddr, len: u64) {
        let whole = len.max(1).next_multiple_of(PAGE);
        // The memory is zeroed before it can be taken again. The next line refuses a run that is
        // not allocated.
        let _ = self.fill(addr, whole, 0);
        let start = addr.0.wrapping_sub(self.base);
        let pages = (start / PAGE) as usize..(start.wrapping_add(whole) / PAGE) as usize;
        if let Some(written) = self.block.lock().written.get_mut(pages) {
            written.fill(false);
        }
        self.runs.lock().give(start, len);
    }

    /// Calls `f`, which may write, with the `len` bytes at `addr`.
    fn with<T>(&self, addr: IoAddr, len: usize, f: impl FnOnce(&mut [u8]) -> T) -> Result<T, MemoryError> {
        let mut block = self.block.lock();
        let range = self.range_in(block.bytes.len(), addr, len as u64)?;
        block.get_mut(range).map(f).ok_or(MemoryError::OutOfRange)
    }

    /// Returns the index range of `len` bytes at `addr` in a block of `total` bytes.
    fn range_in(&self, total: usize, addr: IoAddr, len: u64) -> Result<Range<usize>, MemoryError> {
        if len == 0 {
            return Ok(0..0);
        }
        let start = addr.0.checked_sub(self.base).ok_or(MemoryError::OutOfRange)?;
        let end = start.checked_add(len).ok_or(MemoryError::OutOfRange)?;
        if end > total as u64 {
            return Err(MemoryError::OutOfRange);
        }
        // Both are at most `total`, which is a usize.
        Ok(start as usize..end as usize)
    }

    /// Replaces the word at `addr` with the result of `f` for that word, and returns the previous value.
    fn update(&self, addr: IoAddr, f: impl FnOnce(u64) -> u64) -> Result<u64, MemoryError> {
        if !addr.0.is_multiple_of(8) {
            return Err(MemoryError::Misaligned);
        }
        self.with(addr, 8, |word| {
            let mut before = [0; 8];
            before.copy_from_slice(word);
            let before = u64::from_ne_bytes(before);
            word.copy_from_slice(&f(before).to_ne_bytes());
            before
        })
    }
}

impl Memory for Arena {
    fn range(&self) -> (IoAddr, u64) {
        (IoAddr(self.base), self.block.lock().bytes.len() as u64)
    }

    fn check(&self, addr: IoAddr, len: u64) -> Result<(), MemoryError> {
        self.range_in(self.block.lock().bytes.len(), addr, len).map(|_| ())
    }

    fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError> {
        let block = self.block.lock();
        let range = self.range_in(block.bytes.len(), addr, buf.len() as u64)?;
        buf.copy_from_slice(block.bytes.get(range).ok_or(MemoryError::OutOfRange)?);
        Ok(())
    }

    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError> {
        self.with(addr, data.len(), |bytes| bytes.copy_from_slice(data))
    }

    fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError> {
        let len = usize::try_from(len).map_err(|_| MemoryError::OutOfRange)?;
        self.with(addr, len, |bytes| bytes.fill(byte))
    }

    fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError> {
        let mut block = self.block.lock();
        let src = self.range_in(block.bytes.len(), src, len)?;
        let dst = self.range_in(block.bytes.len(), dst, len)?;
        let start = dst.start;
        block.get_mut(dst).ok_or(MemoryError::OutOfRange)?;
        block.bytes.copy_within(src, start);
        Ok(())
    }

    fn fetch_add(&self, addr: IoAddr, add: u64) -> Result<u64, MemoryError> {
        self.update(addr, |before| before.wrapping_add(add))
    }

    fn compare_swap(&self, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        self.update(addr, |before| if before == compare { swap } else { before })
    }

    fn lend(&self, len: u64) -> Option<Box<dyn Lent>> {
        let addr = self.alloc(len)?;
        Some(Box::new(HostLent::new(self.clone(), addr, len, Self::free)))
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

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: IoAddr = IoAddr(0x1_0000_0000);

    #[test]
    fn accesses_are_whole_or_refused() {
        let arena = Arena::new(BASE, 8192);
        let end = BASE.0 + 8192;
        assert_eq!(arena.range(), (BASE, 8192));
        assert_eq!(arena.write(IoAddr(end - 3), b"abc"), Ok(()));
        assert_eq!(arena.write(IoAddr(end - 3), b"wxyz"), Err(MemoryError::OutOfRange));
        let mut buf = [0; 3];
        assert_eq!(arena.read(IoAddr(end - 3), &mut buf), Ok(()));
        assert_eq!(&buf, b"abc");
        for (addr, len) in
            [(0, 1), (BASE.0 - 1, 2), (end, 1), (u64::MAX, 2), (BASE.0, u64::MAX), (BASE.0, 8193)]
        {
            assert_eq!(arena.check(IoAddr(addr), len), Err(MemoryError::OutOfRange), "{addr:#x}+{len:#x}");
        }
        assert_eq!(arena.check(IoAddr(5), 0), Ok(()));
        assert_eq!(arena.write(IoAddr(5), &[]), Ok(()));
        arena.fill(BASE, 16, 7).unwrap();
        arena.copy(BASE, IoAddr(BASE.0 + 8), 16).unwrap();
        let mut buf = [0; 25];
        arena.read(BASE, &mut buf).unwrap();
        assert_eq!(buf[..24], [7; 24]);
        assert_eq!(buf[24], 0);
    }

    #[test]
    fn atomics_are_native_endian_words() {
        let arena = Arena::new(BASE, 4096);
        arena.write(BASE, &5u64.to_ne_bytes()).unwrap();
        assert_eq!(arena.fetch_add(BASE, u64::MAX), Ok(5));
        assert_eq!(arena.compare_swap(BASE, 5, 9), Ok(4));
        assert_eq!(arena.compare_swap(BASE, 4, 9), Ok(4));
        assert_eq!(arena.fetch_add(BASE, 0), Ok(9));
        assert_eq!(arena.fetch_add(IoAddr(BASE.0 + 4), 0), Err(MemoryError::Misaligned));
        assert_eq!(arena.fetch_add(IoAddr(BASE.0 + 4096), 0), Err(MemoryError::OutOfRange));
    }

    #[test]
    fn runs_are_zeroed_disjoint_and_merge_again() {
        let arena = Arena::new(BASE, 16 * PAGE);
        let a = arena.alloc(1).unwrap();
        let b = arena.alloc(PAGE + 1).unwrap();
        let c = arena.alloc(13 * PAGE).unwrap();
        assert_eq!((a.0, b.0, c.0), (BASE.0, BASE.0 + PAGE, BASE.0 + 3 * PAGE));
        assert_eq!(arena.alloc(1), None);
        arena.fill(b, 2 * PAGE, 0xff).unwrap();
        arena.free(b, PAGE + 1);
        arena.free(a, 1);
        assert_eq!(arena.stats(), MemoryStats { total: 16 * PAGE, free: 3 * PAGE });
        assert_eq!(arena.largest_free(), 3 * PAGE);
        let d = arena.alloc(3 * PAGE).unwrap();
        let mut bytes = vec![1; 3 * PAGE as usize];
        arena.read(d, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&b| b == 0));
        arena.free(c, 13 * PAGE);
        arena.free(d, 3 * PAGE);
        assert_eq!(arena.largest_free(), 16 * PAGE);
    }

    #[test]
    fn what_is_lent_is_reached_within_its_bounds_and_goes_back_once() {
        let arena = Arena::new(BASE, 4 * PAGE);
        let first = arena.lend(PAGE).unwrap();
        let run = arena.lend(100).unwrap();
        assert_eq!((run.addr(), run.size()), (IoAddr(BASE.0 + PAGE), 100));
        run.write(96, b"last").unwrap();
        let mut bytes = [0; 4];
        run.read(96, &mut bytes).unwrap();
        assert_eq!(&bytes, b"last");
        for (offset, len) in [(97, 4), (101, 0), (u64::MAX, 1)] {
            assert_eq!(run.read(offset, &mut bytes[..len]), Err(MemoryError::OutOfRange), "{offset}");
            assert_eq!(run.write(offset, &bytes[..len]), Err(MemoryError::OutOfRange), "{offset}");
        }
        drop(first);
        drop(run);
        assert_eq!(arena.largest_free(), 4 * PAGE);
    }

    #[test]
    fn a_write_to_free_memory_is_seen_and_does_not_stay() {
        let arena = Arena::new(BASE, 4 * PAGE);
        let a = arena.alloc(PAGE).unwrap();
        arena.fill(a, PAGE, 7).unwrap();
        arena.free(a, PAGE);
        assert_eq!(arena.stray_write(), None, "freed memory is zero");
        arena.write(IoAddr(BASE.0 + 5), &[1]).unwrap();
        let b = arena.alloc(PAGE).unwrap();
        let mut byte = [9];
        arena.read(IoAddr(b.0 + 5), &mut byte).unwrap();
        assert!(arena.has_stray_write() && byte == [0]);
        assert_eq!(arena.stray_write(), Some(IoAddr(BASE.0 + 5)));
    }

    #[test]
    #[should_panic(expected = "not allocated")]
    fn a_run_is_freed_once() {
        let arena = Arena::new(BASE, 4096);
        let a = arena.alloc(1).unwrap();
        arena.free(a, 1);
        arena.free(a, 1);
    }
}
