//! The reservations of a writer that are not written yet, and its low mark.

use crate::layout::Position;
use crate::planted::{Bug, planted};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The most commits of one writer that may be in progress at once; others wait.
const MOST: usize = 64;
/// The mark of an entry that is not used.
const FREE: u64 = u64::MAX;

/// The entries of all commits in progress.
///
/// Before the fetch-add of a commit is posted, its entry is set to a position at or below the one that the
/// fetch-add will return. Then the entry is set to the returned position, and it is freed when the frame is
/// written. A low mark is therefore at or below each position that the writer has reserved before the mark
/// was taken and may still write.
pub(crate) struct Pending {
    entries: [AtomicU64; MOST],
    /// The number of entries that are given away.
    given: AtomicUsize,
}

/// The entry of a commit.
#[derive(Debug)]
pub(crate) struct EntryId(usize);

impl Pending {
    pub(crate) const fn new() -> Self {
        Self { entries: [const { AtomicU64::new(FREE) }; MOST], given: AtomicUsize::new(0) }
    }

    /// Returns one more entry, unless all are given away.
    pub(crate) fn entry(&self) -> Option<EntryId> {
        let given =
            self.given.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < MOST).then_some(n + 1));
        given.ok().map(EntryId)
    }

    /// Begins a commit, whose position will be at or above `least`.
    #[inline]
    pub(crate) fn begin(&self, entry: &EntryId, least: Position) {
        let mark = if planted(Bug::MarkForgetsReservations) { FREE - 1 } else { least.slot() };
        if let Some(entry) = self.entries.get(entry.0) {
            // The caller posts the fetch-add afterwards, so no mark misses this commit.
            entry.swap(mark, Ordering::SeqCst);
        }
    }

    /// Sets the position that a commit has reserved. A task that does not see it yet takes a lower mark.
    #[inline]
    pub(crate) fn reserved(&self, entry: &EntryId, at: Position) {
        if let Some(entry) = self.entries.get(entry.0) {
            entry.store(at.slot(), Ordering::Release);
        }
    }

    /// Ends a commit. It must not write any more.
    #[inline]
    pub(crate) fn end(&self, entry: &EntryId) {
        if let Some(entry) = self.entries.get(entry.0) {
            entry.store(FREE, Ordering::Release);
        }
    }

    /// Returns the low mark, below which no commit in progress writes.
    pub(crate) fn low_mark(&self) -> Position {
        let marks = self.entries.iter().map(|entry| entry.load(Ordering::SeqCst));
        Position::from_slot(marks.min().unwrap_or(FREE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_mark_is_that_of_the_oldest_commit() {
        let pending = Pending::new();
        let at = Position::from_slot;
        assert_eq!(pending.low_mark(), at(u64::MAX));
        let (a, b) = (pending.entry().unwrap(), pending.entry().unwrap());
        pending.begin(&a, at(5));
        pending.begin(&b, at(3));
        assert_eq!(pending.low_mark(), at(3));
        pending.reserved(&b, at(9));
        assert_eq!(pending.low_mark(), at(5));
        pending.end(&a);
        assert_eq!(pending.low_mark(), at(9));
        pending.end(&b);
        assert_eq!(pending.low_mark(), at(u64::MAX));
        assert_eq!((2..MOST + 5).filter_map(|_| pending.entry()).count(), MOST - 2);
    }
}
