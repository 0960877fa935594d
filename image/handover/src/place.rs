//! The search for free memory.

use crate::map::{Entry, RAM};

/// A range of physical addresses, from `start` to `end` (exclusive).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first address.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
}

impl Span {
    /// Returns the range of `len` bytes from `start`.
    #[must_use]
    pub const fn new(start: u64, len: u64) -> Self {
        Self { start, end: start.saturating_add(len) }
    }

    /// Returns true if the ranges have an address in common.
    #[must_use]
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end && self.start < self.end && other.start < other.end
    }
}

/// The requirements on a range of free memory.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The length in bytes.
    pub len: u64,
    /// The alignment of the first address, a power of two.
    pub align: u64,
    /// The least address.
    pub from: u64,
    /// The greatest end.
    pub below: u64,
}

impl Place {
    /// Returns the highest free range in `map` that meets the requirements. It lies in one entry of RAM, and
    /// overlaps no other entry and no range of `taken`.
    #[must_use]
    pub fn find(&self, map: &[Entry], taken: &[Span]) -> Option<Span> {
        // The highest free range ends at the end of RAM, or where something begins that is in the way.
        let ends = map.iter().map(|entry| if entry.kind == RAM { entry.end() } else { entry.start });
        let ends = ends.chain(taken.iter().map(|span| span.start)).chain([self.below]);
        let starts = ends.filter_map(|end| {
            let start = end.min(self.below).checked_sub(self.len)? & !(self.align - 1);
            self.is_free(start, map, taken).then_some(start)
        });
        starts.max().map(|start| Span::new(start, self.len))
    }

    /// Returns true if `span` lies in one entry of RAM and overlaps nothing else of the map.
    #[must_use]
    pub fn is_ram(span: &Span, map: &[Entry]) -> bool {
        let holds = |entry: &Entry| entry.kind == RAM && entry.start <= span.start && span.end <= entry.end();
        let other = |entry: &Entry| entry.kind != RAM && Span::new(entry.start, entry.len).overlaps(span);
        map.iter().any(holds) && !map.iter().any(other)
    }

    fn is_free(&self, start: u64, map: &[Entry], taken: &[Span]) -> bool {
        let span = Span::new(start, self.len);
        let is_within = start >= self.from && span.end <= self.below;
        is_within && Self::is_ram(&span, map) && !taken.iter().any(|taken| taken.overlaps(&span))
    }
}
