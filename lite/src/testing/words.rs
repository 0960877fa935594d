//! A [`Memory`] of words that are accessed one by one, without a lock, for native benchmarks.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use platform::runs::{PAGE, Runs};
use platform::{HostLent, IoAddr, Lent, Memory, MemoryError, MemoryStats};
use spin::Mutex;

const WORD: u64 = 8;

/// One run of memory, in 8-byte words. A copy is a load or store for each word. Clones share the memory.
#[derive(Clone)]
pub struct Words {
    base: u64,
    len: u64,
    words: Arc<[AtomicU64]>,
    runs: Arc<Mutex<Runs>>,
}

/// The part of one word that a range covers: the index of the word, the first byte in it, and the number of
/// bytes.
struct Part {
    word: usize,
    first: usize,
    len: usize,
}

impl Words {
    /// Returns memory of `len` zero bytes (rounded up to 4096) from the address `base`.
    ///
    /// # Panics
    /// If `base` is not a multiple of 4096, or the heap has no room.
    #[must_use]
    pub fn new(base: IoAddr, len: u64) -> Self {
        assert!(base.0.is_multiple_of(PAGE), "the base must be aligned to 4096");
        let len = len.next_multiple_of(PAGE);
        let words = (0..len / WORD).map(|_| AtomicU64::new(0)).collect();
        Self { base: base.0, len, words, runs: Arc::new(Mutex::new(Runs::new(len))) }
    }

    fn free(&self, addr: IoAddr, len: u64) {
        self.runs.lock().give(addr.0.wrapping_sub(self.base), len);
    }

    /// Returns the offset of `len` bytes at `addr`.
    fn offset(&self, addr: IoAddr, len: u64) -> Result<u64, MemoryError> {
        if len == 0 {
            return Ok(0);
        }
        let start = addr.0.wrapping_sub(self.base);
        let fits = start < self.len && len <= self.len - start;
        fits.then_some(start).ok_or(MemoryError::OutOfRange)
    }

    /// Returns the whole words with which `len` bytes at `offset` begin: none if a part of a word is first.
    fn whole(&self, offset: u64, len: usize) -> &[AtomicU64] {
        let count = if offset.is_multiple_of(WORD) { len / WORD as usize } else { 0 };
        let first = (offset / WORD) as usize;
        self.words.get(first..first + count).unwrap_or_default()
    }

    fn parts(offset: u64, len: usize) -> impl Iterator<Item = Part> {
        let (mut at, end) = (offset, offset + len as u64);
        core::iter::from_fn(move || {
            (at < end).then(|| {
                let first = (at % WORD) as usize;
                let len = (end - at).min(WORD - at % WORD) as usize;
                let part = Part { word: (at / WORD) as usize, first, len };
                at += len as u64;
                part
            })
        })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[at]
    }

    fn store(&self, part: &Part, bytes: &[u8]) {
        // Another processor may write the adjacent bytes meanwhile.
        let put = |word: u64| {
            let mut all = word.to_ne_bytes();
            all[part.first..part.first + part.len].copy_from_slice(bytes);
            Some(u64::from_ne_bytes(all))
        };
        let _ = self.word(part.word).fetch_update(Ordering::AcqRel, Ordering::Acquire, put);
    }

    fn aligned(&self, addr: IoAddr) -> Result<&AtomicU64, MemoryError> {
        if !addr.0.is_multiple_of(WORD) {
            return Err(MemoryError::Misaligned);
        }
        Ok(self.word((self.offset(addr, WORD)? / WORD) as usize))
    }
}

impl Memory for Words {
    fn range(&self) -> (IoAddr, u64) {
        (IoAddr(self.base), self.len)
    }

    fn check(&self, addr: IoAddr, len: u64) -> Result<(), MemoryError> {
        self.offset(addr, len).map(drop)
    }

    fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError> {
        let offset = self.offset(addr, buf.len() as u64)?;
        let words = self.whole(offset, buf.len());
        for (bytes, word) in buf.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.load(Ordering::Acquire).to_ne_bytes();
        }
        let mut at = words.len() * WORD as usize;
        for part in Self::parts(offset + at as u64, buf.len() - at) {
            let word = self.word(part.word).load(Ordering::Acquire).to_ne_bytes();
            buf[at..at + part.len].copy_from_slice(&word[part.first..part.first + part.len]);
            at += part.len;
        }
        Ok(())
    }

    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError> {
        let offset = self.offset(addr, data.len() as u64)?;
        let words = self.whole(offset, data.len());
        for (bytes, word) in data.as_chunks().0.iter().zip(words) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Release);
        }
        let mut at = words.len() * WORD as usize;
        for part in Self::parts(offset + at as u64, data.len() - at) {
            self.store(&part, &data[at..at + part.len]);
            at += part.len;
        }
        Ok(())
    }

    fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError> {
        let offset = self.offset(addr, len)?;
        for part in Self::parts(offset, len as usize) {
            self.store(&part, &[byte; WORD as usize][..part.len]);
        }
        Ok(())
    }

    fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError> {
        self.check(dst, len)?;
        let mut bytes = alloc::vec![0; len as usize];
        self.read(src, &mut bytes)?;
        self.write(dst, &bytes)
    }

    fn fetch_add(&self, addr: IoAddr, add: u64) -> Result<u64, MemoryError> {
        Ok(self.aligned(addr)?.fetch_add(add, Ordering::AcqRel))
    }

    fn compare_swap(&self, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        let word = self.aligned(addr)?;
        Ok(word
            .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|before| before))
    }

    fn lend(&self, len: u64) -> Option<Box<dyn Lent>> {
        let (start, rounded) = self.runs.lock().take(len)?;
        let addr = IoAddr(self.base + start);
        self.fill(addr, rounded, 0).ok()?;
        Some(Box::new(HostLent::new(self.clone(), addr, len, Self::free)))
    }

    fn stats(&self) -> MemoryStats {
        self.runs.lock().stats()
    }

    fn largest_free(&self) -> u64 {
        self.runs.lock().largest_free()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use platform::Arena;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const BASE: IoAddr = IoAddr(0x1_0000_0000);
    const LEN: u64 = 4096;

    #[derive(Clone, Debug)]
    enum Op {
        Write(u64, Vec<u8>),
        Read(u64, usize),
        Fill(u64, u64, u8),
        Copy(u64, u64, u64),
        Add(u64, u64),
        Swap(u64, u64, u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let at = || 0u64..200;
        prop_oneof![
            (at(), proptest::collection::vec(any::<u8>(), 0..40)).prop_map(|(a, d)| Op::Write(a, d)),
            (at(), 0usize..40).prop_map(|(a, n)| Op::Read(a, n)),
            (at(), 0u64..40, any::<u8>()).prop_map(|(a, n, b)| Op::Fill(a, n, b)),
            (at(), at(), 0u64..40).prop_map(|(a, b, n)| Op::Copy(a, b, n)),
            (at(), any::<u64>()).prop_map(|(a, n)| Op::Add(a, n)),
            (at(), 0u64..2, any::<u64>()).prop_map(|(a, c, s)| Op::Swap(a, c, s)),
        ]
    }

    proptest! {
        /// This memory behaves as an [`Arena`], also at its end.
        #[test]
        fn as_an_arena(ops in proptest::collection::vec(op(), 1..60), end in any::<bool>()) {
            let (words, arena) = (Words::new(BASE, LEN), Arena::new(BASE, LEN));
            let from = if end { BASE.0 + LEN - 100 } else { BASE.0 };
            let at = |offset| IoAddr(from + offset);
            let both: [&dyn Memory; 2] = [&words, &arena];
            for op in ops {
                let [a, b] = both.map(|m| match &op {
                    Op::Write(a, d) => (m.write(at(*a), d).map(|()| 0), vec![]),
                    Op::Read(a, n) => {
                        let mut got = vec![0; *n];
                        (m.read(at(*a), &mut got).map(|()| 0), got)
                    }
                    Op::Fill(a, n, b) => (m.fill(at(*a), *n, *b).map(|()| 0), vec![]),
                    Op::Copy(a, b, n) => (m.copy(at(*a), at(*b), *n).map(|()| 0), vec![]),
                    Op::Add(a, n) => (m.fetch_add(at(*a), *n), vec![]),
                    Op::Swap(a, c, s) => (m.compare_swap(at(*a), *c, *s), vec![]),
                });
                prop_assert_eq!(a, b);
            }
        }
    }
}
