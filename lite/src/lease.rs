//! This node's own view of its membership.
//!
//! The manager declares a node dead when its lease ends without a heartbeat. The platform sends heartbeats even while a
//! task computes, but their acknowledgements are taken in by a task, and so may lie unread for as long. A lease that
//! seems to have ended is therefore given [`GRACE`] from the first look at it, in which the control task gets its turn;
//! only then the node fences itself. That is safe: others do not rely on it, they destroy their queue pairs to a dead
//! node before they reuse what it could reach.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use core::time::Duration;
use platform::Instant;

/// How long acknowledgements may lie unread once the poller runs.
const GRACE: Duration = Duration::from_millis(200);

/// A member.
const MEMBER: u8 = 0;
/// About to leave: it begins nothing any more, and ends what it has begun.
const LEAVING: u8 = 1;
/// No member any more.
const FENCED: u8 = 2;

/// How a membership has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// The node has left.
    Left,
    /// Against its will.
    Lost,
}

/// The lease of this node.
pub(crate) struct Lease {
    /// Until when the membership holds, in nanoseconds; as far as this node knows.
    until: AtomicU64,
    /// When the poller first saw that it had ended, in nanoseconds; `u64::MAX` while it has not.
    lapsed: AtomicU64,
    standing: AtomicU8,
}

impl Lease {
    pub(crate) fn new(until: Instant) -> Self {
        Self {
            until: AtomicU64::new(until.as_nanos()),
            lapsed: AtomicU64::new(u64::MAX),
            standing: AtomicU8::new(MEMBER),
        }
    }

    /// An acknowledgement extends the lease to `until`.
    pub(crate) fn extend(&self, until: Instant) {
        self.until.fetch_max(until.as_nanos(), Ordering::SeqCst);
    }

    /// Whether this node must begin nothing as a member any more.
    pub(crate) fn is_fenced(&self) -> bool {
        self.standing.load(Ordering::SeqCst) != MEMBER
    }

    /// Whether the membership is over.
    pub(crate) fn is_over(&self) -> bool {
        self.standing.load(Ordering::SeqCst) == FENCED
    }

    /// The node is about to leave; gives whether it was a member until now.
    pub(crate) fn leave(&self) -> bool {
        self.standing.compare_exchange(MEMBER, LEAVING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Ends the membership; gives how it was until now, if it was not over.
    pub(crate) fn fence(&self) -> Option<Ended> {
        match self.standing.swap(FENCED, Ordering::SeqCst) {
            MEMBER => Some(Ended::Lost),
            LEAVING => Some(Ended::Left),
            _ => None,
        }
    }

    /// Whether the membership is over; called by the poller.
    pub(crate) fn has_ended(&self, now: Instant) -> bool {
        if now.as_nanos() <= self.until.load(Ordering::SeqCst) {
            if self.lapsed.load(Ordering::SeqCst) != u64::MAX {
                self.lapsed.store(u64::MAX, Ordering::SeqCst);
            }
            return false;
        }
        let seen = self.lapsed.load(Ordering::SeqCst);
        if seen == u64::MAX {
            self.lapsed.store(now.as_nanos(), Ordering::SeqCst);
            return false;
        }
        now.saturating_since(Instant::from_nanos(seen)) >= GRACE
    }

    /// When the poller must look again.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if self.is_over() {
            return None;
        }
        let until = Instant::from_nanos(self.until.load(Ordering::SeqCst).saturating_add(1));
        match self.lapsed.load(Ordering::SeqCst) {
            u64::MAX => Some(until),
            seen => Some(until.max(Instant::from_nanos(seen) + GRACE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn ends_after_a_grace() {
        let lease = Lease::new(at(1000));
        assert!(!lease.has_ended(at(1000)));
        assert_eq!(lease.next_deadline(), Some(Instant::from_nanos(1_000_000_001)));
        assert!(!lease.has_ended(at(1001)));
        assert_eq!(lease.next_deadline(), Some(at(1201)));
        assert!(!lease.has_ended(at(1200)));
        assert!(lease.has_ended(at(1201)));
        assert!(!lease.is_fenced() && lease.leave() && !lease.leave());
        assert!(lease.is_fenced() && !lease.is_over());
        assert_eq!((lease.fence(), lease.fence()), (Some(Ended::Left), None));
        assert!(lease.is_over() && !lease.leave());
        assert_eq!(lease.next_deadline(), None);
    }

    /// A task has computed for ten seconds; the acknowledgements have come meanwhile, but nobody has read them.
    #[test]
    fn unread_acknowledgements_are_read_first() {
        let lease = Lease::new(at(5000));
        assert!(!lease.has_ended(at(10_000)), "the first look does not end it");
        lease.extend(at(14_000));
        assert!(!lease.has_ended(at(10_300)));
        assert!(!lease.has_ended(at(14_001)), "a new lapse has a grace of its own");
        assert!(lease.has_ended(at(14_201)));
    }
}
