//! Storage for the bytes of long keys, with few allocations and without moves.

use crate::OutOfMemory;
use alloc::vec::Vec;

/// Size of a chunk in bytes. A key larger than a quarter of it has a chunk of its own.
const CHUNK: usize = 64 << 10;

/// The address of a key's bytes in an arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    chunk: u32,
    start: u32,
}

impl Address {
    pub(crate) const fn to_word(self) -> u64 {
        (self.chunk as u64) << 32 | self.start as u64
    }

    pub(crate) const fn from_word(word: u64) -> Self {
        Self { chunk: (word >> 32) as u32, start: word as u32 }
    }
}

/// Append-only storage. Only the latest entry can be removed.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    chunks: Vec<Vec<u8>>,
    /// Index of the chunk that small entries are appended to.
    open: usize,
}

impl Arena {
    /// Appends `len` bytes that `fill` writes, and returns their address.
    pub(crate) fn push(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<Address, OutOfMemory> {
        let own = len > CHUNK / 4;
        let fits = self.chunks.get(self.open).is_some_and(|c| c.capacity() - c.len() >= len);
        if own || !fits {
            let size = if own { len } else { CHUNK };
            let mut chunk = Vec::new();
            chunk.try_reserve_exact(size).map_err(|_| OutOfMemory { wanted: size })?;
            self.chunks.try_reserve(1).map_err(|_| OutOfMemory { wanted: size })?;
            if !own {
                self.open = self.chunks.len();
            }
            self.chunks.push(chunk);
        }
        let at = if own { self.chunks.len() - 1 } else { self.open };
        let chunk = &mut self.chunks[at];
        let start = chunk.len();
        chunk.resize(start + len, 0);
        fill(&mut chunk[start..]);
        Ok(Address { chunk: at as u32, start: start as u32 })
    }

    /// Removes the entry that the latest `push` appended.
    pub(crate) fn pop(&mut self, addr: Address) {
        let chunk = addr.chunk as usize;
        self.chunks[chunk].truncate(addr.start as usize);
        if chunk != self.open {
            self.chunks.truncate(chunk);
        }
    }

    /// Returns the `len` bytes at `addr`.
    pub(crate) fn get(&self, addr: Address, len: usize) -> &[u8] {
        &self.chunks[addr.chunk as usize][addr.start as usize..][..len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_entries_keep_their_bytes() {
        let mut arena = Arena::default();
        let lens = [1, 20_000, 17, 16_384, 16_385, 0, 300_000, 5, 65_536, 16_000, 16_000, 16_000, 16_000];
        let mut addrs = Vec::new();
        for (i, &len) in lens.iter().enumerate() {
            // Each entry is pushed, removed, and pushed again.
            let taken_back = arena.push(len, |b| b.fill(0xee)).unwrap();
            arena.pop(taken_back);
            addrs.push(arena.push(len, |b| b.fill(i as u8)).unwrap());
        }
        for (i, (&len, &addr)) in lens.iter().zip(&addrs).enumerate() {
            let bytes = arena.get(Address::from_word(addr.to_word()), len);
            assert_eq!(bytes.len(), len);
            assert!(bytes.iter().all(|&b| b == i as u8), "entry {i}");
        }
    }
}
