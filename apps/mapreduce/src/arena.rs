//! Storage for the bytes of long keys: few allocations, no moves.

use crate::OutOfMemory;
use alloc::vec::Vec;

/// Size of a chunk in bytes. A key larger than a quarter of it has a chunk of its own.
const CHUNK: usize = 64 << 10;

/// Where a key's bytes stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    chunk: u32,
    start: u32,
}

impl Place {
    pub(crate) const fn to_word(self) -> u64 {
        (self.chunk as u64) << 32 | self.start as u64
    }

    pub(crate) const fn from_word(word: u64) -> Self {
        Self { chunk: (word >> 32) as u32, start: word as u32 }
    }
}

/// Append-only bytes; only the latest entry can be taken back.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    chunks: Vec<Vec<u8>>,
    /// The chunk that small entries go to.
    open: usize,
}

impl Arena {
    /// Appends `len` bytes that `fill` writes.
    pub(crate) fn push(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<Place, OutOfMemory> {
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
        Ok(Place { chunk: at as u32, start: start as u32 })
    }

    /// Takes back what the latest `push` appended.
    pub(crate) fn pop(&mut self, place: Place) {
        let chunk = place.chunk as usize;
        self.chunks[chunk].truncate(place.start as usize);
        if chunk != self.open {
            self.chunks.truncate(chunk);
        }
    }

    /// The `len` bytes at `place`.
    pub(crate) fn get(&self, place: Place, len: usize) -> &[u8] {
        &self.chunks[place.chunk as usize][place.start as usize..][..len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_entries_keep_their_bytes() {
        let mut arena = Arena::default();
        let lens = [1, 20_000, 17, 16_384, 16_385, 0, 300_000, 5, 65_536, 16_000, 16_000, 16_000, 16_000];
        let mut places = Vec::new();
        for (i, &len) in lens.iter().enumerate() {
            // Each entry is first pushed and taken back.
            let taken_back = arena.push(len, |b| b.fill(0xee)).unwrap();
            arena.pop(taken_back);
            places.push(arena.push(len, |b| b.fill(i as u8)).unwrap());
        }
        for (i, (&len, &place)) in lens.iter().zip(&places).enumerate() {
            let bytes = arena.get(Place::from_word(place.to_word()), len);
            assert_eq!(bytes.len(), len);
            assert!(bytes.iter().all(|&b| b == i as u8), "entry {i}");
        }
    }
}
