//! Which runs of a block of memory are free: what a [`Memory`](crate::Memory) on a host allocates with.

use crate::MemoryStats;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Allocation granularity and alignment in bytes.
pub const PAGE: u64 = 4096;

/// A first-fit allocator of the runs of a block, by offset; it touches no memory.
#[derive(Debug)]
pub struct Runs {
    /// Offset to length, both in bytes and multiples of [`PAGE`].
    free: BTreeMap<u64, u64>,
    taken: BTreeMap<u64, u64>,
    total: u64,
}

impl Runs {
    /// A block of `total` bytes (rounded down to [`PAGE`]), all of it free.
    #[must_use]
    pub fn new(total: u64) -> Self {
        let total = total - total % PAGE;
        let free = if total > 0 { BTreeMap::from([(0, total)]) } else { BTreeMap::new() };
        Self { free, taken: BTreeMap::new(), total }
    }

    /// Takes the first run that has `len` bytes (rounded up to [`PAGE`], at least one): its offset, and its length.
    pub fn take(&mut self, len: u64) -> Option<(u64, u64)> {
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let (&start, &run) = self.free.iter().find(|&(_, &run)| run >= len)?;
        self.free.remove(&start);
        if run > len {
            self.free.insert(start + len, run - len);
        }
        self.taken.insert(start, len);
        Some((start, len))
    }

    /// Gives back the run at `start`, of exactly the `len` it was taken with.
    ///
    /// # Panics
    /// If that run is not taken.
    pub fn give(&mut self, start: u64, len: u64) {
        let len = len.max(1).next_multiple_of(PAGE);
        assert!(self.taken.get(&start) == Some(&len), "freed run {start:#x}+{len:#x} is not allocated");
        self.taken.remove(&start);
        // Merge with the free neighbours.
        let mut merged = start..start + len;
        if let Some(after) = self.free.remove(&merged.end) {
            merged.end += after;
        }
        let before = self.free.range(..start).next_back().map(|(&s, &l)| (s, l));
        if let Some((s, _)) = before.filter(|&(s, l)| s + l == start) {
            self.free.remove(&s);
            merged.start = s;
        }
        self.free.insert(merged.start, merged.end - merged.start);
    }

    /// The free runs: offset and length of each.
    #[must_use]
    pub fn free(&self) -> Vec<(u64, u64)> {
        self.free.iter().map(|(start, len)| (*start, *len)).collect()
    }

    /// How much there is and how much is free.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        let largest_free = self.free.values().copied().max().unwrap_or(0);
        MemoryStats { total: self.total, free: self.free.values().sum(), largest_free }
    }
}
