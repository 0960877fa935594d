//! The reservations of a writer that are not written yet, and its low mark.

use crate::layout::Position;
use crate::planted::{Bug, planted};
use core::sync::atomic::{AtomicU64, Ordering};

/// The most commits of one writer that may be in progress at once; others wait.
const MOST: usize = 64;
/// The mark of an entry that is not used.
const FREE: u64 = u64::MAX;

/// The entries of all commits in progress.
///
/// An entry is set before its fetch-add is posted, to a position at or below the one that the fetch-add will
/// return; it is then set to that position, and freed when the frame is written. A low mark that is taken
/// later than some moment so is at or below each position that the writer has reserved before that moment
/// and may still write.
pub(crate) struct Pending {
    entries: [AtomicU64; MOST],
}

/// The entry of a commit.
#[derive(Debug)]
pub(crate) struct EntryId(usize);

impl Pending {
    pub(crate) const fn new() -> Self {
        Self { entries: [const { AtomicU64::new(FREE) }; MOST] }
    }

    /// Takes an entry for a commit whose position will be at or above `least`, unless all are in use.
    pub(crate) fn begin(&self, least: Position) -> Option<EntryId> {
        let mark = if planted(Bug::MarkForgetsReservations) { FREE - 1 } else { least.slot() };
        let take = |(i, entry): (usize, &AtomicU64)| {
            let taken = entry.load(Ordering::Relaxed) == FREE
                && entry.compare_exchange(FREE, mark, Ordering::SeqCst, Ordering::Relaxed).is_ok();
            taken.then_some(EntryId(i))
        };
        self.entries.iter().enumerate().find_map(take)
    }

    /// Sets the position that a commit has reserved.
    pub(crate) fn reserved(&self, entry: &EntryId, at: Position) {
        if let Some(entry) = self.entries.get(entry.0) {
            entry.store(at.slot(), Ordering::SeqCst);
        }
    }

    /// Frees an entry: its commit will not write any more.
    pub(crate) fn end(&self, entry: EntryId) {
        if let Some(entry) = self.entries.get(entry.0) {
            entry.store(FREE, Ordering::SeqCst);
        }
    }

    /// Returns the low mark: no commit in progress will write below it.
    pub(crate) fn low_mark(&self) -> Position {
        let marks = self.entries.iter().map(|entry| entry.load(Ordering::SeqCst));
        Position::from_slot(marks.min().unwrap_or(FREE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn the_low_mark_is_that_of_the_oldest_commit() {
        let pending = Pending::new();
        let at = Position::from_slot;
        assert_eq!(pending.low_mark(), at(u64::MAX));
        let a = pending.begin(at(5)).unwrap();
        let b = pending.begin(at(3)).unwrap();
        assert_eq!(pending.low_mark(), at(3));
        pending.reserved(&b, at(9));
        assert_eq!(pending.low_mark(), at(5));
        pending.end(a);
        assert_eq!(pending.low_mark(), at(9));
        pending.end(b);
        assert_eq!(pending.low_mark(), at(u64::MAX));
        let all: Vec<_> = (0..MOST).map(|n| pending.begin(at(n as u64)).unwrap()).collect();
        assert!(pending.begin(at(7)).is_none());
        all.into_iter().for_each(|entry| pending.end(entry));
        assert!(pending.begin(at(7)).is_some());
    }
}
