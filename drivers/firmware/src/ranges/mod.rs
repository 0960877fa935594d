//! Sorted lists of address ranges, without a heap: RAM as a loader lists it, in any order, with overlaps.

/// The addresses `start` to `end` (exclusive).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first address.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
}

impl Span {
    /// Returns the number of bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Returns true if there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A set of addresses as up to `N` spans: sorted, not empty, with a gap between each two. A full list drops
/// the smallest span, so that it never contains an address that was not added.
#[derive(Debug)]
pub struct Spans<const N: usize> {
    list: [Span; N],
    len: usize,
    dropped: usize,
}

impl<const N: usize> Default for Spans<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Spans<N> {
    /// Returns an empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { list: [Span { start: 0, end: 0 }; N], len: 0, dropped: 0 }
    }

    /// Returns the spans, in ascending order.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        self.list.get(..self.len).unwrap_or_default()
    }

    /// Returns the number of spans that were dropped because the list was full.
    #[must_use]
    pub const fn dropped(&self) -> usize {
        self.dropped
    }

    /// Adds `start..end`. Spans that it touches become one.
    pub fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.spans().partition_point(|s| s.end < start);
        let after = self.spans().partition_point(|s| s.start <= end);
        let touched = self.spans().get(first..after).unwrap_or_default();
        let all = Span {
            start: touched.first().map_or(start, |s| s.start.min(start)),
            end: touched.last().map_or(end, |s| s.end.max(end)),
        };
        match self.list.get_mut(first).filter(|_| first < after) {
            Some(slot) => {
                *slot = all;
                self.close(first + 1, after);
            }
            None => self.insert(first, all),
        }
    }

    /// Removes `start..end`.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.spans().partition_point(|s| s.end <= start);
        let after = self.spans().partition_point(|s| s.start < end);
        let touched = self.spans().get(first..after).unwrap_or_default();
        let (Some(head), Some(tail)) = (touched.first().copied(), touched.last().copied()) else { return };
        self.close(first, after);
        for rest in [Span { start: end, end: tail.end }, Span { start: head.start, end: start }] {
            if !rest.is_empty() && rest.start < rest.end {
                self.insert(first, rest);
            }
        }
    }

    /// Removes the spans `from..to` from the list.
    fn close(&mut self, from: usize, to: usize) {
        if from < to {
            self.list.copy_within(to..self.len, from);
            self.len -= to - from;
        }
    }

    fn insert(&mut self, mut at: usize, span: Span) {
        if self.len == N {
            self.dropped += 1;
            let smallest = self.spans().iter().enumerate().min_by_key(|(_, s)| s.len());
            let Some((smallest, _)) = smallest.filter(|(_, s)| s.len() < span.len()) else { return };
            self.close(smallest, smallest + 1);
            at -= usize::from(smallest < at);
        }
        self.list.copy_within(at..self.len, at + 1);
        if let Some(slot) = self.list.get_mut(at) {
            *slot = span;
            self.len += 1;
        }
    }
}

/// The length of a page.
const PAGE: u64 = 4096;
/// The page that the processors' start usually takes: above the memory that firmware and loaders use.
const USUAL: u64 = 0x8000;
/// The end of the memory that real mode's firmware leaves to others.
const CONVENTIONAL_END: u64 = 0x9_f000;

/// Returns the address of a page of RAM for the start of processors, which begin in real mode: below 640
/// KiB, and not in `taken`. The first page holds the interrupt vectors of firmware.
#[must_use]
pub fn start_page<const N: usize>(ram: &Spans<N>, taken: impl Iterator<Item = Span> + Clone) -> Option<u64> {
    let usable = |page: &u64| {
        let end = page + PAGE;
        ram.spans().iter().any(|s| s.start <= *page && end <= s.end)
            && !taken.clone().any(|s| s.start < end && *page < s.end)
    };
    let others = (1..CONVENTIONAL_END / PAGE).map(|n| n * PAGE);
    core::iter::once(USUAL).chain(others).find(usable)
}

#[cfg(test)]
mod tests;
