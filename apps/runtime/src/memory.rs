//! The memory that is available to a job.

use alloc::vec::Vec;
use platform::{Memory, MemoryStats};

/// Size of the pieces in which the heap is probed, in bytes.
const PIECE: usize = 64 << 10;

/// Returns the bytes that jobs can allocate, counted up to `wanted`: the free bytes of `memory` and those
/// inside the heap.
///
/// In an appliance the heap grows out of `memory` and never shrinks, so that most free memory may lie inside
/// the heap after a large job. The heap does not report its free bytes: they are found by allocating pieces
/// until the heap grows. Where the heap is not part of `memory`, as in a Linux process, it never does; no more
/// is probed than `memory` has in all.
pub(crate) fn available(memory: &dyn Memory, wanted: u64) -> u64 {
    let MemoryStats { total, free } = memory.stats();
    let Some(missing) = wanted.checked_sub(free).filter(|&m| m > 0) else { return free };
    let missing = missing.min(total.saturating_sub(free));
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    let count = missing.div_ceil(PIECE as u64);
    if usize::try_from(count).map_or(true, |count| pieces.try_reserve_exact(count).is_err()) {
        return free;
    }
    for _ in 0..count {
        let mut piece = Vec::new();
        if piece.try_reserve_exact(PIECE).is_err() || memory.stats().free < free {
            break;
        }
        pieces.push(piece);
    }
    free + (pieces.len() * PIECE) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU64, Ordering};
    use platform::{Arena, IoAddr, MemoryError};

    /// A heap with `pieces` free pieces inside. Once they are used up, the heap grows out of this memory.
    struct Growing {
        pieces: AtomicU64,
        arena: Arena,
    }

    impl Memory for Growing {
        fn stats(&self) -> MemoryStats {
            // `stats` is called once at first and once after each piece.
            let left = self.pieces.fetch_sub(1, Ordering::Relaxed);
            let free = if left == 0 || left > u64::MAX / 2 { 900_000 } else { 1_000_000 };
            MemoryStats { total: 2_000_000, free }
        }
        fn largest_free(&self) -> u64 {
            self.arena.largest_free()
        }
        fn range(&self) -> (IoAddr, u64) {
            self.arena.range()
        }
        fn check(&self, addr: IoAddr, len: u64) -> Result<(), MemoryError> {
            self.arena.check(addr, len)
        }
        fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError> {
            self.arena.read(addr, buf)
        }
        fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError> {
            self.arena.write(addr, data)
        }
        fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError> {
            self.arena.fill(addr, len, byte)
        }
        fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError> {
            self.arena.copy(src, dst, len)
        }
        fn fetch_add(&self, addr: IoAddr, add: u64) -> Result<u64, MemoryError> {
            self.arena.fetch_add(addr, add)
        }
        fn compare_swap(&self, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, MemoryError> {
            self.arena.compare_swap(addr, compare, swap)
        }
        fn lend(&self, len: u64) -> Option<alloc::boxed::Box<dyn platform::Lent>> {
            self.arena.lend(len)
        }
    }

    #[test]
    fn what_the_heap_holds_counts() {
        let memory =
            |pieces: u64| Growing { pieces: AtomicU64::new(pieces + 1), arena: Arena::new(IoAddr(0), 4096) };
        let piece = PIECE as u64;
        assert_eq!(available(&memory(0), 500_000), 1_000_000);
        assert_eq!(available(&memory(0), 1_000_000), 1_000_000);
        assert_eq!(available(&memory(0), 1_500_000), 1_000_000);
        assert_eq!(available(&memory(3), 1_500_000), 1_000_000 + 3 * piece);
        assert_eq!(available(&memory(100), 1_000_000 + 5 * piece), 1_000_000 + 5 * piece);
    }

    #[test]
    fn a_heap_that_is_elsewhere_is_not_probed_beyond_the_memory() {
        // Without the bound this would reserve 1 TiB.
        let memory = Arena::new(IoAddr(0), 1 << 20);
        let _lent = memory.lend(1 << 19).expect("half of the memory");
        assert!(available(&memory, 1 << 40) <= 1 << 20);
    }
}
