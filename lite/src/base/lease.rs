//! The lease: this node's own view of its membership.
//!
//! The manager declares a node dead if it was able to hear the node for the length of a lease and did not.
//! The node counts the same lease from the time at which it *sent* the last acknowledged heartbeat, so its
//! own count ends first. When it has ended, the node does not know whether it is still a member. It is
//! **suspended** then: it posts nothing new, and operations wait until the lease is renewed, or end at
//! their own deadlines. It keeps its memory, its incarnation, its mappings and its queue pairs. An
//! acknowledgement that extends the lease beyond the present time ends the suspension.
//!
//! A membership ends for ever by a message of the manager, when the node leaves, when the link to the manager
//! has ended for ever ([`LinkDown`](platform::LinkDown)), and when a suspension has lasted for
//! [`Config::silence`](crate::Config::silence). Then the node is *fenced*. A connection that breaks ends
//! nothing: the link makes another one.
//!
//! Peers do not rely on the suspension for the safety of their memory: they destroy their queue
//! pairs to a dead node before they reuse memory that it could reach (`docs/design/guarantees.md`,
//! "The manager's silence").
//!
//! Each new operation reads the clock for its deadline, and so checks the lease: a machine that was stopped
//! for longer than the lease notices that before it begins an operation, even if its poller has not run.

use super::standing::{FENCED, LEAVING, SUSPENDED, Standing};
use crate::base::lock::Mutex;
use crate::base::writers::{AtomicU64, Ordering};
use crate::planted::{Bug, planted};
use alloc::sync::Arc;
use core::time::Duration;
use platform::Instant;

/// The duration of a suspension after which it is logged. A task that has computed for longer than the
/// lease has left acknowledgements unread; they are read within this time.
const GRACE: Duration = Duration::from_millis(200);

/// The way in which a membership has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MembershipEnd {
    /// The node has left.
    Left,
    /// The node has lost its membership.
    Lost,
}

/// A suspension that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Resumed {
    /// The duration, if the suspension has been logged.
    pub(crate) told: Option<Duration>,
}

/// The poller's next step in a suspension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// No action is due.
    Wait,
    /// The node logs its suspension, once.
    Tell,
    /// End the membership: the manager was silent for too long.
    End,
}

/// The present suspension, if there is one.
#[derive(Default)]
struct Lapse {
    /// The time at which the end of the lease was first seen.
    since: Option<Instant>,
    told: bool,
}

/// The lease of this node.
pub(crate) struct Lease {
    /// The end of the lease in nanoseconds, as far as this node knows. Changed under the lock of `lapse`.
    until: AtomicU64,
    /// [`SUSPENDED`] changes under the lock of `lapse`.
    standing: Arc<Standing>,
    lapse: Mutex<Lapse>,
    /// The longest suspension.
    silence: Option<Duration>,
}

impl Lease {
    pub(crate) fn new(until: Instant, silence: Option<Duration>, standing: Arc<Standing>) -> Self {
        Self { until: AtomicU64::new(until.as_nanos()), standing, lapse: Mutex::default(), silence }
    }

    fn has(&self, bits: u32) -> bool {
        self.standing.has(bits)
    }

    /// Returns true if this node may begin an operation now.
    pub(crate) fn may_begin(&self) -> bool {
        !self.has(SUSPENDED | LEAVING | FENCED)
    }

    /// Returns whether this node is suspended: it posts nothing new until the manager has answered.
    // A task that waits for the end of a suspension registers its waker first and looks then. A relaxed load
    // could be done before that, and the task would sleep for ever.
    #[inline]
    pub(crate) fn is_suspended(&self) -> bool {
        self.has(SUSPENDED)
    }

    /// Returns whether this node begins nothing as a member any more, because it leaves or its membership
    /// is over.
    pub(crate) fn is_fenced(&self) -> bool {
        self.has(LEAVING | FENCED)
    }

    /// Returns true if the membership is over.
    pub(crate) fn is_over(&self) -> bool {
        self.has(FENCED)
    }

    /// Returns true if the lease has passed at `now`.
    #[inline(always)]
    pub(crate) fn has_passed(&self, now: Instant) -> bool {
        now.as_nanos() > self.until.load(Ordering::Relaxed)
    }

    /// Suspends this node if its lease [has passed](Self::has_passed); returns true if it was not suspended
    /// before.
    #[cold]
    pub(crate) fn suspend(&self, now: Instant) -> bool {
        let mut lapse = self.lapse.lock();
        // An acknowledgement may have come meanwhile.
        if !self.has_passed(now) || self.has(SUSPENDED | FENCED) || planted(Bug::NeverSuspended) {
            return false;
        }
        *lapse = Lapse { since: Some(now), told: false };
        let suspend = |standing| (standing & FENCED == 0).then_some(standing | SUSPENDED);
        self.standing.update(suspend).is_some()
    }

    /// Extends the lease to `until`, by an acknowledgement that came at `now`. Returns the suspension that
    /// ends by this.
    pub(crate) fn extend(&self, until: Instant, now: Instant) -> Option<Resumed> {
        let mut lapse = self.lapse.lock();
        self.until.fetch_max(until.as_nanos(), Ordering::SeqCst);
        if self.has_passed(now) || !self.has(SUSPENDED) {
            return None;
        }
        self.standing.replace(SUSPENDED, 0);
        let Lapse { since, told } = core::mem::take(&mut *lapse);
        Some(Resumed { told: since.filter(|_| told).map(|since| now.saturating_since(since)) })
    }

    /// Returns the next step of the suspension at `now`; called by the poller.
    pub(crate) fn step(&self, now: Instant) -> Step {
        let mut lapse = self.lapse.lock();
        let Some(since) = lapse.since.filter(|_| self.has(SUSPENDED)) else { return Step::Wait };
        let lasted = now.saturating_since(since);
        if self.silence.is_some_and(|silence| lasted >= silence) {
            return Step::End;
        }
        if lasted < GRACE || lapse.told {
            return Step::Wait;
        }
        lapse.told = true;
        Step::Tell
    }

    /// Marks the node as about to leave; returns true if it was a member until now.
    pub(crate) fn leave(&self) -> bool {
        let leave = |standing| (standing & (LEAVING | FENCED) == 0).then_some(standing | LEAVING);
        self.standing.update(leave).is_some()
    }

    /// Ends the membership; returns the way in which it has ended, unless it was over before.
    pub(crate) fn fence(&self) -> Option<MembershipEnd> {
        let fence = |standing| (standing & FENCED == 0).then_some(standing & !(SUSPENDED | LEAVING) | FENCED);
        let before = self.standing.update(fence)?;
        Some(if before & LEAVING != 0 { MembershipEnd::Left } else { MembershipEnd::Lost })
    }

    /// Begins a turn of the poller that looks at all deadlines.
    pub(crate) fn begin_turn(&self) {
        self.standing.begin_turn(self.first_after());
    }

    /// Returns the first time after the lease.
    fn first_after(&self) -> Instant {
        Instant::from_nanos(self.until.load(Ordering::SeqCst).saturating_add(1))
    }

    /// Returns the time of the poller's next check.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        // A lease that has passed without a suspension would be due for ever.
        if self.is_over() || planted(Bug::NeverSuspended) {
            return None;
        }
        let lapse = self.lapse.lock();
        match lapse.since.filter(|_| self.has(SUSPENDED)) {
            None => Some(self.first_after()),
            Some(since) => {
                let tell = (!lapse.told).then(|| since + GRACE);
                let end = self.silence.map(|silence| since + silence);
                tell.into_iter().chain(end).min()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn lease(until: u64, silence: u64) -> Lease {
        Lease::new(at(until), Some(Duration::from_millis(silence)), Arc::default())
    }

    #[test]
    fn a_lease_that_passes_suspends_and_an_acknowledgement_ends_that() {
        let lease = lease(1000, 60_000);
        assert!(!lease.has_passed(at(1000)) && !lease.suspend(at(1000)) && lease.may_begin());
        assert_eq!(lease.next_deadline(), Some(Instant::from_nanos(1_000_000_001)));
        assert!(lease.has_passed(at(1001)) && lease.suspend(at(1001)) && !lease.suspend(at(1002)));
        assert!(lease.is_suspended() && !lease.may_begin() && !lease.is_fenced() && !lease.is_over());
        assert_eq!((lease.step(at(1200)), lease.next_deadline()), (Step::Wait, Some(at(1201))));
        assert_eq!((lease.step(at(1201)), lease.step(at(1202))), (Step::Tell, Step::Wait));
        assert_eq!(lease.next_deadline(), Some(at(61_001)));
        // An acknowledgement of a heartbeat that was sent too long ago changes nothing.
        assert_eq!(lease.extend(at(2000), at(2001)), None);
        assert!(lease.is_suspended());
        let told = Some(Duration::from_millis(2000));
        assert_eq!(lease.extend(at(5000), at(3001)), Some(Resumed { told }));
        assert!(lease.may_begin() && !lease.is_suspended());
        assert_eq!(lease.extend(at(6000), at(3002)), None);
        assert_eq!(lease.next_deadline(), Some(Instant::from_nanos(6_000_000_001)));
    }

    /// A task has computed for ten seconds; acknowledgements have come meanwhile, and no task has read
    /// them.
    #[test]
    fn the_log_tells_of_no_suspension_by_unread_acknowledgements() {
        let lease = lease(5000, 60_000);
        assert!(lease.suspend(at(10_000)));
        assert_eq!(lease.step(at(10_000)), Step::Wait);
        assert_eq!(lease.extend(at(14_000), at(10_050)), Some(Resumed { told: None }));
        assert_eq!(lease.step(at(10_300)), Step::Wait);
        assert!(lease.suspend(at(14_001)));
        assert_eq!((lease.step(at(14_200)), lease.step(at(14_201))), (Step::Wait, Step::Tell));
    }

    #[test]
    fn a_silence_that_lasts_too_long_ends_the_membership() {
        let short = lease(1000, 500);
        assert!(short.suspend(at(9000)));
        assert_eq!(short.step(at(9499)), Step::Tell);
        assert_eq!((short.next_deadline(), short.step(at(9500))), (Some(at(9500)), Step::End));
        let endless = Lease::new(at(1000), None, Arc::default());
        assert!(endless.suspend(at(1001)));
        assert_eq!((endless.step(at(1201)), endless.next_deadline()), (Step::Tell, None));
        assert_eq!(endless.step(at(1 << 40)), Step::Wait);
    }

    #[test]
    fn a_suspended_node_may_leave_and_a_fenced_one_stays_fenced() {
        let left = lease(1000, 60_000);
        assert!(left.suspend(at(1001)) && left.leave() && !left.leave());
        assert!(left.is_fenced() && left.is_suspended() && !left.is_over());
        // The lease is renewed while the node leaves.
        assert!(left.extend(at(2000), at(1002)).is_some());
        assert!(left.is_fenced() && !left.is_suspended() && !left.may_begin());
        assert_eq!((left.fence(), left.fence()), (Some(MembershipEnd::Left), None));
        assert!(left.is_over() && !left.leave() && !left.suspend(at(9000)) && !left.is_suspended());
        assert_eq!(left.next_deadline(), None);
        let lost = lease(1000, 60_000);
        assert!(lost.suspend(at(1001)));
        assert_eq!(lost.fence(), Some(MembershipEnd::Lost));
        assert!(!lost.is_suspended() && lost.extend(at(5000), at(2000)).is_none());
        assert_eq!(lost.step(at(3000)), Step::Wait);
    }
}
