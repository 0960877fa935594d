//! Memory shared by driver and card: words, in pieces that are freed when they are dropped.

use mlx4::Block;
use platform::runs::{PAGE, Runs};
use platform::{HostLent, IoAddr, Lent, Memory, MemoryError, MemoryStats};
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The memory that the driver and the card share. Clones refer to the same memory.
#[derive(Clone)]
pub struct Pool {
    base: u64,
    words: Arc<[AtomicU64]>,
    runs: Arc<Mutex<Runs>>,
}

impl Pool {
    pub fn new(base: IoAddr, len: u64) -> Arc<Self> {
        let words = (0..len / 8).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { base: base.0, words, runs: Arc::new(Mutex::new(Runs::new(len))) })
    }

    /// Returns the number of allocated bytes.
    pub fn in_use(&self) -> u64 {
        let stats = self.stats();
        stats.total - stats.free
    }

    pub fn alloc(&self, len: u64) -> Option<IoAddr> {
        let (start, len) = self.runs.lock().unwrap().take(len)?;
        self.fill(IoAddr(self.base + start), len, 0).ok()?;
        Some(IoAddr(self.base + start))
    }

    pub fn free(&self, addr: IoAddr, len: u64) {
        self.runs.lock().unwrap().give(addr.0 - self.base, len);
    }

    fn offset(&self, addr: IoAddr, len: u64) -> Result<u64, MemoryError> {
        let offset = addr.0.checked_sub(self.base).ok_or(MemoryError::OutOfRange)?;
        let end = offset.checked_add(len).ok_or(MemoryError::OutOfRange)?;
        if end <= self.words.len() as u64 * 8 { Ok(offset) } else { Err(MemoryError::OutOfRange) }
    }

    fn word(&self, addr: IoAddr) -> Result<&AtomicU64, MemoryError> {
        if !addr.0.is_multiple_of(8) {
            return Err(MemoryError::Misaligned);
        }
        self.words.get(self.offset(addr, 8)? as usize / 8).ok_or(MemoryError::OutOfRange)
    }

    /// Returns the parts of words that a range covers: index of the word, first byte in it, and the part's
    /// position in the range.
    fn parts(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = offset as usize + done;
            let n = (8 - at % 8).min(len - done);
            let part = (at / 8, at % 8, done..done + n);
            done += n;
            (n > 0).then_some(part)
        })
    }
}

impl Memory for Pool {
    fn range(&self) -> (IoAddr, u64) {
        (IoAddr(self.base), self.words.len() as u64 * 8)
    }
    fn check(&self, addr: IoAddr, len: u64) -> Result<(), MemoryError> {
        self.offset(addr, len).map(drop)
    }
    fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError> {
        let offset = self.offset(addr, buf.len() as u64)?;
        for (word, first, range) in Self::parts(offset, buf.len()) {
            let bytes = self.words[word].load(Ordering::Acquire).to_ne_bytes();
            let len = range.len();
            buf[range].copy_from_slice(&bytes[first..first + len]);
        }
        Ok(())
    }
    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError> {
        let offset = self.offset(addr, data.len() as u64)?;
        for (word, first, range) in Self::parts(offset, data.len()) {
            let mut bytes = self.words[word].load(Ordering::Relaxed).to_ne_bytes();
            let len = range.len();
            bytes[first..first + len].copy_from_slice(&data[range]);
            self.words[word].store(u64::from_ne_bytes(bytes), Ordering::Release);
        }
        Ok(())
    }
    fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError> {
        self.write(addr, &vec![byte; len as usize])
    }
    fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError> {
        let mut bytes = vec![0; len as usize];
        self.read(src, &mut bytes)?;
        self.write(dst, &bytes)
    }
    fn fetch_add(&self, addr: IoAddr, add: u64) -> Result<u64, MemoryError> {
        Ok(self.word(addr)?.fetch_add(add, Ordering::AcqRel))
    }
    fn compare_swap(&self, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        let swapped = self.word(addr)?.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
        Ok(swapped.unwrap_or_else(|before| before))
    }
    fn lend(&self, len: u64) -> Option<Box<dyn Lent>> {
        let addr = self.alloc(len)?;
        Some(Box::new(HostLent::new(self.clone(), addr, len, Self::free)))
    }
    fn stats(&self) -> MemoryStats {
        self.runs.lock().unwrap().stats()
    }
    fn largest_free(&self) -> u64 {
        self.runs.lock().unwrap().largest_free()
    }
}

/// An allocated piece.
pub struct Piece {
    pool: Arc<Pool>,
    addr: IoAddr,
    len: u64,
    words: Range<usize>,
}

impl Piece {
    pub fn take(pool: &Arc<Pool>, len: u64) -> Option<Self> {
        let len = len.next_multiple_of(PAGE);
        let addr = pool.alloc(len)?;
        let first = ((addr.0 - pool.base) / 8) as usize;
        Some(Self { pool: pool.clone(), addr, len, words: first..first + (len / 8) as usize })
    }
}

impl Deref for Piece {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        &self.pool.words[self.words.clone()]
    }
}

impl Block for Piece {
    fn addr(&self) -> IoAddr {
        self.addr
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.pool.free(self.addr, self.len);
    }
}
