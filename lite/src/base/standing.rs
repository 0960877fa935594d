//! The two words that an operation looks at before it begins, and that the poller looks at in each turn: the
//! standing of this node, and the time at which the poller has more to do than to take completions.
//!
//! The time is a minimum. Each part of the node that has a deadline keeps it, and lowers this word to it
//! afterwards. A turn of the poller that finds the time passed raises it to the end of the lease first, lets
//! each part do what is due, and lowers it to the deadlines that are left. A deadline that is set meanwhile
//! is either seen by the part in this turn, or lowers the word after it was raised; it is never lost.

use crate::base::writers::{AtomicU32, AtomicU64, Ordering};
use platform::Instant;

/// The lease has passed, as far as this node knows.
pub(super) const SUSPENDED: u32 = 1;
/// The node is about to leave: it begins nothing new, and ends the operations that it has begun.
pub(super) const LEAVING: u32 = 2;
/// The node is no longer a member.
pub(super) const FENCED: u32 = 4;
/// Events are traced.
pub(super) const TRACED: u32 = 8;
/// Priorities have queue pairs of their own: HW-Sep.
pub(super) const SEPARATED: u32 = 16;
/// Operations of low priority may be delayed: SW-Pri.
pub(super) const DELAYED: u32 = 32;
/// A connected peer has had fewer cores than this node.
pub(super) const MIXED: u32 = 64;

/// The two words.
#[derive(Default)]
pub(crate) struct Standing {
    /// The bits above; zero: a member, without tracing and schemes.
    word: AtomicU32,
    /// A time in nanoseconds that is not later than the end of the lease, and not later than any deadline
    /// that the poller serves; zero if something waits for its next turn.
    due: AtomicU64,
}

impl Standing {
    /// Returns true if an operation may begin now, and needs no attention of tracing or of a scheme.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.word.load(Ordering::Relaxed) == 0
    }

    /// Returns true if one of the bits is set.
    #[inline(always)]
    pub(super) fn has(&self, bits: u32) -> bool {
        self.word.load(Ordering::SeqCst) & bits != 0
    }

    /// Returns true if events are traced.
    #[inline(always)]
    pub(crate) fn is_traced(&self) -> bool {
        self.word.load(Ordering::Relaxed) & TRACED != 0
    }

    /// Notes that a connected peer has fewer cores than this node.
    pub(crate) fn mix(&self) {
        if !self.has(MIXED) {
            self.replace(MIXED, MIXED);
        }
    }

    /// Sets and clears bits, and returns the word before, if `change` returns the new word.
    pub(super) fn update(&self, change: impl FnMut(u32) -> Option<u32>) -> Option<u32> {
        self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).ok()
    }

    /// Sets those of `bits` that are in `to`, and clears the others of `bits`.
    pub(super) fn replace(&self, bits: u32, to: u32) {
        self.update(|word| Some(word & !bits | to));
    }

    /// Returns true if the lease may have passed at `now`, or something is due.
    #[inline(always)]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now.as_nanos() >= self.due.load(Ordering::Acquire)
    }

    /// Makes the poller look at all deadlines by `at`. Must be called after the deadline has been stored
    /// where the poller finds it.
    pub(crate) fn due_by(&self, at: Instant) {
        self.due.fetch_min(at.as_nanos(), Ordering::AcqRel);
    }

    /// Begins a turn that looks at all deadlines. `lease` is the first time after the lease.
    pub(super) fn begin_turn(&self, lease: Instant) {
        self.due.swap(lease.as_nanos(), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_time_counts_until_the_next_turn() {
        let standing = Standing::default();
        let at = Instant::from_nanos;
        assert!(standing.is_due(Instant::ZERO), "the first turn looks at everything");
        standing.begin_turn(at(100));
        assert!(!standing.is_due(at(99)) && standing.is_due(at(100)));
        for time in [70, 50, 60] {
            standing.due_by(at(time));
        }
        assert!(!standing.is_due(at(49)) && standing.is_due(at(50)));
        standing.begin_turn(at(200));
        assert!(!standing.is_due(at(199)));
    }

    #[test]
    fn each_bit_changes_by_itself() {
        let standing = Standing::default();
        assert!(standing.is_plain());
        standing.replace(TRACED, TRACED);
        standing.replace(SEPARATED | DELAYED, DELAYED);
        assert!(standing.is_traced() && standing.has(DELAYED) && !standing.has(SEPARATED | FENCED));
        standing.replace(SEPARATED | DELAYED, SEPARATED);
        standing.replace(TRACED, 0);
        assert!(standing.has(SEPARATED) && !standing.has(DELAYED) && !standing.is_traced());
        standing.replace(SEPARATED | DELAYED, 0);
        assert!(standing.is_plain());
    }
}
