//! The reservations of a writer that are not written yet, and its low mark.

use crate::layout::Position;
use crate::planted::{Bug, planted};
use alloc::boxed::Box;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering};
use spin::{Mutex, MutexGuard};

/// The most commits of one writer that may be in progress at once; others wait.
const MOST: usize = 64;
/// The mark of an entry that is not used.
const FREE: u64 = u64::MAX;

/// The entries of all commits in progress. Each has a desk, on which a commit works.
///
/// Before the fetch-add of a commit is posted, its entry is set to a position at or below the one that the
/// fetch-add will return. Then the entry is set to the returned position, and it is freed when the frame is
/// written. A low mark is therefore at or below each position that the writer has reserved before the mark
/// was taken and may still write.
pub(crate) struct Pending<D> {
    entries: Box<[Entry<D>]>,
}

/// An entry, in cache lines of its own, so that commits on two cores have none in common.
// Two cache lines, because processors fetch lines in pairs.
#[repr(align(128))]
struct Entry<D> {
    mark: AtomicU64,
    /// Locked by the commit that uses the entry. Nobody waits for this lock.
    desk: Mutex<D>,
}

/// An entry that a commit uses, with its desk. The next commit may use the desk when this has been dropped
/// and the entry has been [ended](Pending::end).
pub(crate) struct Taken<'a, D> {
    /// The number of the entry.
    pub(crate) number: usize,
    mark: &'a AtomicU64,
    desk: MutexGuard<'a, D>,
}

impl<D: Default> Pending<D> {
    pub(crate) fn new() -> Self {
        let new = || Entry { mark: AtomicU64::new(FREE), desk: Mutex::default() };
        Self { entries: (0..MOST).map(|_| new()).collect() }
    }
}

impl<D> Pending<D> {
    /// Takes a free entry. Returns `None` if all are in use.
    #[inline]
    pub(crate) fn take(&self) -> Option<Taken<'_, D>> {
        self.entries.iter().enumerate().find_map(|(number, Entry { mark, desk })| {
            // A look first, because an attempt to lock costs more. A task in the background may use the entry
            // without the desk, so the mark decides once the desk is locked.
            let is_free = || mark.load(Ordering::Relaxed) == FREE;
            let desk = is_free().then(|| desk.try_lock())??;
            is_free().then_some(Taken { number, mark, desk })
        })
    }

    /// Ends the commit of entry `number`, whose [`Taken`] has been dropped. It must not write any more.
    pub(crate) fn end(&self, number: usize) {
        if let Some(entry) = self.entries.get(number) {
            entry.mark.store(FREE, Ordering::Release);
        }
    }

    /// Returns the low mark, below which no commit in progress writes.
    pub(crate) fn low_mark(&self) -> Position {
        let marks = self.entries.iter().map(|entry| entry.mark.load(Ordering::SeqCst));
        Position::from_slot(marks.min().unwrap_or(FREE))
    }
}

impl<D> Taken<'_, D> {
    /// Begins a commit, whose position will be at or above `least`.
    #[inline]
    pub(crate) fn begin(&self, least: Position) {
        let mark = if planted(Bug::MarkForgetsReservations) { FREE - 1 } else { least.slot() };
        // The caller posts the fetch-add afterwards. A mark that misses this commit is therefore taken before
        // the RNIC has done the fetch-add: `docs/design/log.md` has the argument.
        self.mark.store(mark, Ordering::Release);
    }

    /// Sets the position that a commit has reserved. A task that does not see it yet takes a lower mark.
    #[inline]
    pub(crate) fn reserved(&self, at: Position) {
        self.mark.store(at.slot(), Ordering::Release);
    }

    /// Ends a commit. It must not write any more.
    #[inline]
    pub(crate) fn end(&self) {
        self.mark.store(FREE, Ordering::Release);
    }
}

impl<D> Deref for Taken<'_, D> {
    type Target = D;

    #[inline]
    fn deref(&self) -> &D {
        &self.desk
    }
}

impl<D> DerefMut for Taken<'_, D> {
    #[inline]
    fn deref_mut(&mut self) -> &mut D {
        &mut self.desk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn the_low_mark_is_that_of_the_oldest_commit() {
        let pending = Pending::<()>::new();
        let at = Position::from_slot;
        assert_eq!(pending.low_mark(), at(u64::MAX));
        let (a, b) = (pending.take().unwrap(), pending.take().unwrap());
        a.begin(at(5));
        b.begin(at(3));
        assert_eq!(pending.low_mark(), at(3));
        b.reserved(at(9));
        assert_eq!(pending.low_mark(), at(5));
        a.end();
        assert_eq!(pending.low_mark(), at(9));
        b.end();
        assert_eq!(pending.low_mark(), at(u64::MAX));
    }

    #[test]
    fn an_entry_is_used_by_one_commit_at_a_time() {
        let pending = Pending::<()>::new();
        let mut all: Vec<_> = core::iter::from_fn(|| pending.take()).collect();
        assert_eq!(all.len(), MOST);
        // A commit that has not ended passes its entry to a task in the background.
        let last = all.pop().unwrap();
        last.begin(Position::START);
        let number = last.number;
        drop(last);
        assert!(pending.take().is_none());
        pending.end(number);
        assert_eq!(pending.take().map(|taken| taken.number), Some(number));
        all.pop();
        assert!(pending.take().is_some());
    }
}
