//! The allocator of free runs in a block, with which a [`Memory`](crate::Memory) on a host allocates.

use crate::MemoryStats;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Allocation granularity and alignment in bytes.
pub const PAGE: u64 = 4096;

/// A first-fit allocator of runs in a block, by offset. It does not access the memory itself.
#[derive(Debug)]
pub struct Runs {
    /// The free runs: length by offset, both in bytes and multiples of [`PAGE`].
    free: BTreeMap<u64, u64>,
    taken: BTreeMap<u64, u64>,
    total: u64,
    /// The sum of the free runs.
    left: u64,
    /// The least value of `left` since it was last asked for.
    least: u64,
}

impl Runs {
    /// Makes a block of `total` bytes (rounded down to [`PAGE`]), all of it free.
    #[must_use]
    pub fn new(total: u64) -> Self {
        let total = total - total % PAGE;
        let free = if total > 0 { BTreeMap::from([(0, total)]) } else { BTreeMap::new() };
        Self { free, taken: BTreeMap::new(), total, left: total, least: total }
    }

    /// Allocates the first run that has `len` bytes (rounded up to [`PAGE`], at least one page). Returns its
    /// offset and length.
    pub fn take(&mut self, len: u64) -> Option<(u64, u64)> {
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let (&start, &run) = self.free.iter().find(|&(_, &run)| run >= len)?;
        self.free.remove(&start);
        if run > len {
            self.free.insert(start + len, run - len);
        }
        self.taken.insert(start, len);
        self.left -= len;
        self.least = self.least.min(self.left);
        Some((start, len))
    }

    /// Frees the run at `start`, given the same `len` as at its allocation.
    ///
    /// # Panics
    /// If that run is not allocated.
    pub fn give(&mut self, start: u64, len: u64) {
        let len = len.max(1).next_multiple_of(PAGE);
        assert!(self.taken.get(&start) == Some(&len), "freed run {start:#x}+{len:#x} is not allocated");
        self.taken.remove(&start);
        self.left += len;
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

    /// Returns the offset and the length of each free run, in bytes.
    #[must_use]
    pub fn free(&self) -> Vec<(u64, u64)> {
        self.free.iter().map(|(start, len)| (*start, *len)).collect()
    }

    /// Returns the amounts of total and free memory.
    #[must_use]
    pub const fn stats(&self) -> MemoryStats {
        MemoryStats { total: self.total, free: self.left }
    }

    /// Returns the least amount of free memory since the last call of this, in bytes.
    pub const fn take_least_free(&mut self) -> u64 {
        core::mem::replace(&mut self.least, self.left)
    }

    /// Bytes of the longest run that is free.
    #[must_use]
    pub fn largest_free(&self) -> u64 {
        self.free.values().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_free_memory_is_since_the_last_question() {
        let mut runs = Runs::new(8 * PAGE);
        assert_eq!(runs.take_least_free(), 8 * PAGE);
        let (start, len) = runs.take(3 * PAGE).expect("free pages");
        runs.give(start, len);
        runs.take(PAGE).expect("a free page");
        assert_eq!(runs.take_least_free(), 5 * PAGE);
        assert_eq!(runs.take_least_free(), 7 * PAGE);
    }

    #[test]
    fn the_running_total_is_the_sum_of_the_free_runs() {
        let mut runs = Runs::new(64 * PAGE);
        let mut taken: alloc::vec::Vec<(u64, u64)> = alloc::vec::Vec::new();
        let mut state = 1u64;
        for _ in 0..1000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let n = state >> 33;
            if n.is_multiple_of(3) && !taken.is_empty() {
                let (start, len) = taken.swap_remove(n as usize / 3 % taken.len());
                runs.give(start, len);
            } else {
                taken.extend(runs.take(n % (9 * PAGE)));
            }
            let sum: u64 = runs.free.values().sum();
            assert_eq!((runs.stats().free, runs.stats().total), (sum, 64 * PAGE));
        }
    }
}
