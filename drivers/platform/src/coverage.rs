//! The part of a machine's memory that one key of an RDMA card can cover: whole pages of one size.
//!
//! A card finds the pages of a key in a table with one entry for each page, and caches few entries. Large
//! pages therefore make the key fast; small pages let it cover memory to the last byte before a kernel image
//! or a hole.

use alloc::vec::Vec;
use core::ops::Range;

/// log2 of the smallest page size in bytes.
const LOG_MIN_PAGE: u32 = 12;
/// log2 of the largest page size in bytes.
const LOG_MAX_PAGE: u32 = 30;
/// Divisor of the memory that may stay uncovered so that pages can be larger: at most 1/32 of it.
const UNCOVERED_DIVISOR: u64 = 32;

/// Memory as whole pages of one size. The ranges are ascending, disjoint and not empty; each begins and ends
/// at a multiple of the page size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// log2 of the page size in bytes.
    pub log_page: u32,
    /// The ranges of addresses, in bytes.
    pub ranges: Vec<Range<u64>>,
}

impl Coverage {
    /// Covers the disjoint ranges of `memory` with the largest pages (4 KiB to 1 GiB) that leave at most 1/32
    /// of it uncovered. Nothing outside of `memory` is covered.
    #[must_use]
    pub fn of(memory: &[Range<u64>]) -> Self {
        let memory = merged(memory);
        let total: u64 = memory.iter().map(len).sum();
        let enough = |pages: &Self| total - pages.bytes() <= total / UNCOVERED_DIVISOR;
        let largest =
            (LOG_MIN_PAGE + 1..=LOG_MAX_PAGE).rev().map(|log| Self::with_pages(&memory, log)).find(enough);
        largest.unwrap_or_else(|| Self::with_pages(&memory, LOG_MIN_PAGE))
    }

    fn with_pages(memory: &[Range<u64>], log_page: u32) -> Self {
        let page = 1 << log_page;
        let whole = |range: &Range<u64>| {
            let start = range.start.checked_next_multiple_of(page)?;
            let end = range.end & !(page - 1);
            (start < end).then_some(start..end)
        };
        Self { log_page, ranges: memory.iter().filter_map(whole).collect() }
    }

    /// Returns the number of bytes covered.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(len).sum()
    }
}

const fn len(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

/// Returns the ranges in ascending order, with adjacent and overlapping ones merged.
fn merged(memory: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted: Vec<_> = memory.iter().filter(|range| len(range) > 0).cloned().collect();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match all.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn nothing_outside_of_the_memory_is_covered() {
        let memory = [MIB..2 * MIB, 7 * MIB + 4 * KIB..90 * MIB, 100 * MIB..511 * MIB + 12 * KIB];
        let covered = Coverage::of(&memory);
        assert!(!covered.ranges.is_empty());
        for range in &covered.ranges {
            assert!(memory.iter().any(|m| m.start <= range.start && range.end <= m.end), "{range:x?}");
            assert!((range.start | range.end).trailing_zeros() >= covered.log_page, "{range:x?}");
        }
        assert!(covered.ranges.is_sorted_by(|a, b| a.end <= b.start));
    }

    #[test]
    fn pages_are_the_largest_that_leave_at_most_a_part_in_32_out() {
        // Small machines as QEMU makes them: the memory excludes the first MiB, and an image of 4 MiB at 2
        // MiB.
        let small = |total: u64| Coverage::of(&[MIB..2 * MIB, 6 * MIB..total]);
        assert_eq!(
            small(8 * MIB),
            Coverage { log_page: 20, ranges: [MIB..2 * MIB, 6 * MIB..8 * MIB].into() }
        );
        assert_eq!(
            small(64 * MIB),
            Coverage { log_page: 21, ranges: core::iter::once(6 * MIB..64 * MIB).collect() }
        );
        // A server with 1 TiB, of which 2 GiB are below the registers of its devices.
        let large = Coverage::of(&[MIB..2 * MIB, 6 * MIB..2 * GIB, 4 * GIB..1026 * GIB]);
        let expected = [GIB..2 * GIB, 4 * GIB..1026 * GIB];
        assert_eq!(large, Coverage { log_page: 30, ranges: expected.into() });
        assert_eq!(large.bytes(), 1023 * GIB);
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let covered =
            Coverage::of(&[8 * MIB..16 * MIB + 4 * KIB, 16 * MIB + 4 * KIB..24 * MIB, 40 * MIB..40 * MIB]);
        assert_eq!(covered, Coverage { log_page: 23, ranges: core::iter::once(8 * MIB..24 * MIB).collect() });
    }

    #[test]
    fn memory_of_odd_pages_is_covered_by_small_ones_and_none_by_none() {
        let odd: Vec<_> = (0..32).map(|n| (2 * n + 1) * 4 * KIB..(2 * n + 2) * 4 * KIB).collect();
        assert_eq!(Coverage::of(&odd), Coverage { log_page: 12, ranges: odd.clone() });
        assert_eq!(Coverage::of(&[]).bytes(), 0);
    }
}
