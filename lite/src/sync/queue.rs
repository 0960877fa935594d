//! The queue of a lock: its holders and waiters. Logic only.
//!
//! The queue is fair: each claim waits behind all earlier ones, so neither readers nor writers starve.

use super::fencing::FencingToken;
use crate::base::member::MemberId;
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The mode in which a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// Held together with other shared holders.
    Shared,
    /// Held by one task alone.
    Exclusive,
}

/// A task that waits for a lock or holds it: its node's incarnation, and the number that the task chose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    pub(crate) by: MemberId,
    pub(crate) token: u64,
    pub(crate) mode: Mode,
}

impl Claim {
    fn is(&self, by: MemberId, token: u64) -> bool {
        self.by == by && self.token == token
    }
}

/// A claim that has been granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) claim: Claim,
    /// True if the last exclusive holder died with the lock.
    pub(crate) after_death: bool,
    /// The fencing token of this grant, which is larger than that of every earlier grant.
    pub(crate) token: FencingToken,
}

/// Holders and waiters of a lock.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The number of the binding of the lock's name. No claim is granted until it is known.
    binding: Option<u64>,
    /// The number of grants of the lock so far.
    granted: u64,
    holders: Vec<Grant>,
    waiting: VecDeque<Claim>,
    /// The incarnations that held the lock exclusively when they ended, and whose end some nodes may not
    /// know yet.
    unsettled: Vec<MemberId>,
    /// True if an exclusive holder has died and no exclusive holder has had the lock since.
    died: bool,
}

impl Queue {
    /// Sets the number of the binding of the lock's name, and returns the claims that can be granted now.
    pub(crate) fn bound(&mut self, binding: u64) -> Vec<Grant> {
        self.binding = Some(binding);
        self.advance()
    }

    /// Adds a claim, and returns its grant if it can be granted at once. If it cannot and `wait` is false,
    /// the claim is not added. A claim made twice counts once.
    pub(crate) fn claim(&mut self, claim: Claim, wait: bool) -> Option<Grant> {
        if let Some(held) = self.holders.iter().find(|g| g.claim.is(claim.by, claim.token)) {
            return Some(*held);
        }
        if self.waiting.iter().any(|c| c.is(claim.by, claim.token)) {
            return None;
        }
        if self.waiting.is_empty()
            && let Some(binding) = self.fits(claim.mode)
        {
            return Some(self.hold(claim, binding));
        }
        if wait {
            self.waiting.push_back(claim);
        }
        None
    }

    /// Removes a claim, granted or not, and returns the claims that are granted by that. Unknown claims
    /// change nothing. `held`: the task has had the lock and so knows of a death; a grant that came too
    /// late told nobody.
    pub(crate) fn release(&mut self, by: MemberId, token: u64, held: bool) -> Vec<Grant> {
        if held && self.holders.iter().any(|g| g.claim.is(by, token) && g.claim.mode == Mode::Exclusive) {
            self.died = false;
        }
        if !held && self.holders.iter().any(|g| g.claim.is(by, token)) {
            sometimes!("a grant went to a claim that was given up");
        }
        self.holders.retain(|g| !g.claim.is(by, token));
        self.waiting.retain(|claim| !claim.is(by, token));
        self.advance()
    }

    /// Removes the claims of an incarnation that has ended, and returns the claims that are granted by
    /// that. If it held the lock exclusively, the lock stays blocked until [`settled`](Self::settled): some
    /// node may still accept what that incarnation sent.
    pub(crate) fn end(&mut self, member: MemberId) -> Vec<Grant> {
        self.waiting.retain(|claim| claim.by != member);
        let exclusive = self.holders.iter().any(|g| g.claim.by == member && g.claim.mode == Mode::Exclusive);
        self.holders.retain(|g| g.claim.by != member);
        if exclusive {
            sometimes!("the holder of a lock died");
            self.died = !planted(Bug::DeathNotTold);
            if !planted(Bug::LockBeforeSettled) {
                self.unsettled.push(member);
            }
        }
        self.advance()
    }

    /// Unblocks the lock once all nodes know of the end of an incarnation, and returns the claims that are
    /// granted by that.
    pub(crate) fn settled(&mut self, member: MemberId) -> Vec<Grant> {
        self.unsettled.retain(|l| *l != member);
        self.advance()
    }

    /// Returns the number of holders and waiters whose incarnations `which` selects.
    #[cfg(feature = "testing")]
    pub(crate) fn places_of(&self, which: &dyn Fn(MemberId) -> bool) -> usize {
        let claims = self.holders.iter().map(|g| &g.claim).chain(&self.waiting);
        claims.filter(|claim| which(claim.by)).count()
    }

    /// Returns all waiting claims of a lock that has ended, so that their nodes can be told.
    pub(crate) fn into_waiting(self) -> impl Iterator<Item = Claim> {
        self.waiting.into_iter()
    }

    /// Returns the number of the binding if one more claim with this mode can be granted.
    fn fits(&self, mode: Mode) -> Option<u64> {
        let fits = self.unsettled.is_empty()
            && match mode {
                Mode::Exclusive => self.holders.is_empty() || planted(Bug::DoubleGrant),
                Mode::Shared => self.holders.iter().all(|g| g.claim.mode == Mode::Shared),
            };
        self.binding.filter(|_| fits)
    }

    fn hold(&mut self, claim: Claim, binding: u64) -> Grant {
        if self.died {
            sometimes!("a grant told of a death");
        }
        self.granted += u64::from(!planted(Bug::TokenStands));
        let token = FencingToken::new(binding, self.granted);
        let grant = Grant { claim, after_death: self.died, token };
        self.holders.push(grant);
        grant
    }

    fn advance(&mut self) -> Vec<Grant> {
        let mut grants = Vec::new();
        while let Some(next) = self.waiting.front().copied()
            && let Some(binding) = self.fits(next.mode)
        {
            self.waiting.pop_front();
            grants.push(self.hold(next, binding));
        }
        grants
    }
}

#[cfg(test)]
mod tests {
    use super::Mode::{Exclusive, Shared};
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;
    use proto::{Incarnation, NodeId};

    fn member(n: u16) -> MemberId {
        (NodeId(n), Incarnation(u64::from(n)))
    }

    fn claim(n: u16, token: u64, mode: Mode) -> Claim {
        Claim { by: member(n), token, mode }
    }

    fn tokens(grants: &[Grant]) -> Vec<u64> {
        grants.iter().map(|g| g.claim.token).collect()
    }

    fn queue() -> Queue {
        let mut queue = Queue::default();
        assert!(queue.bound(7).is_empty());
        queue
    }

    #[test]
    fn nobody_holds_a_lock_before_its_name_is_bound() {
        let mut q = Queue::default();
        assert!(q.claim(claim(1, 1, Shared), false).is_none());
        assert!(q.claim(claim(1, 2, Shared), true).is_none() && q.claim(claim(2, 3, Shared), true).is_none());
        assert!(q.release(member(1), 9, true).is_empty() && q.end(member(9)).is_empty());
        let grants = q.bound(7);
        assert_eq!(tokens(&grants), [2, 3], "the first one did not wait");
        assert_eq!(grants.iter().map(|g| g.token.to_u128()).collect::<Vec<_>>(), [7 << 64 | 1, 7 << 64 | 2]);
    }

    #[test]
    fn readers_share_and_nobody_passes_a_waiting_writer() {
        let mut q = queue();
        assert!(q.claim(claim(1, 1, Shared), true).is_some());
        assert!(q.claim(claim(2, 2, Shared), true).is_some());
        assert!(q.claim(claim(3, 3, Exclusive), true).is_none());
        assert!(q.claim(claim(1, 4, Shared), true).is_none());
        assert!(q.claim(claim(1, 5, Shared), false).is_none(), "and does not wait");
        assert!(q.release(member(1), 1, true).is_empty());
        assert_eq!(tokens(&q.release(member(2), 2, true)), [3]);
        assert!(q.claim(claim(2, 6, Shared), true).is_none());
        assert_eq!(tokens(&q.release(member(3), 3, true)), [4, 6]);
        // A claim made twice is in the queue once.
        assert!(
            q.claim(claim(3, 7, Exclusive), true).is_none()
                && q.claim(claim(3, 7, Exclusive), true).is_none()
        );
        assert_eq!(q.claim(claim(1, 4, Shared), true).map(|g| g.claim.token), Some(4));
        assert!(q.release(member(3), 7, true).is_empty() && q.waiting.is_empty());
        // Another node's token changes nothing, nor does a claim that was given up before.
        assert!(q.release(member(9), 4, true).is_empty() && q.release(member(3), 3, true).is_empty());
    }

    #[test]
    fn a_writer_that_dies_blocks_until_all_know_and_the_next_ones_are_told() {
        let mut q = queue();
        assert_eq!(q.claim(claim(1, 1, Exclusive), true).map(|g| g.after_death), Some(false));
        for (n, mode) in [(2, Shared), (3, Exclusive), (4, Exclusive)] {
            assert!(q.claim(claim(n, u64::from(n), mode), true).is_none());
        }
        assert!(q.end(member(1)).is_empty());
        assert!(q.claim(claim(5, 5, Shared), false).is_none());
        let told = q.settled(member(1));
        assert_eq!((tokens(&told), told[0].after_death), (vec![2], true));
        // A reader that dies changes nothing for others.
        let told = q.end(member(2));
        assert_eq!((tokens(&told), told[0].after_death), (vec![3], true));
        let told = q.release(member(3), 3, true);
        assert_eq!((tokens(&told), told[0].after_death), (vec![4], false));
    }

    #[test]
    fn a_death_is_told_until_somebody_has_had_the_lock_alone() {
        let mut q = queue();
        assert!(q.claim(claim(1, 1, Exclusive), true).is_some());
        for (n, mode) in [(2, Exclusive), (3, Shared), (4, Exclusive), (5, Exclusive)] {
            assert!(q.claim(claim(n, u64::from(n), mode), true).is_none());
        }
        assert!(q.end(member(1)).is_empty());
        let is_told =
            |grants: Vec<Grant>| grants.iter().map(|g| (g.claim.token, g.after_death)).collect::<Vec<_>>();
        assert_eq!(is_told(q.settled(member(1))), [(2, true)]);
        // The second had given up when it was granted the lock. The third only reads, and may not repair
        // what is half changed.
        assert_eq!(is_told(q.release(member(2), 2, false)), [(3, true)]);
        assert_eq!(is_told(q.release(member(3), 3, true)), [(4, true)]);
        assert_eq!(q.claim(claim(4, 4, Exclusive), true).map(|g| g.after_death), Some(true), "asked again");
        assert_eq!(is_told(q.release(member(4), 4, true)), [(5, false)]);
    }

    proptest! {
        /// After any steps there is one writer or only readers, no waiter is forgotten, and waiters are
        /// served in order.
        #[test]
        fn holders_never_conflict(steps in proptest::collection::vec((0u8..4, 1u16..5, 0u64..8, any::<bool>()), 0..200)) {
            let mut q = queue();
            let mut newest = FencingToken::NONE;
            let (mut waiting, mut used) = (VecDeque::new(), alloc::collections::BTreeSet::new());
            let mut number = 0;
            for (what, node, pick, shared) in steps {
                let mode = if shared { Shared } else { Exclusive };
                let grants = match what {
                    0 | 1 => {
                        number += 1;
                        used.insert(number);
                        waiting.push_back(number);
                        q.claim(claim(node, number, mode), true).into_iter().collect()
                    }
                    2 => {
                        let token = used.iter().copied().nth(pick as usize).unwrap_or(0);
                        waiting.retain(|t| *t != token);
                        (1..5).flat_map(|n| q.release(member(n), token, true)).collect()
                    }
                    _ => {
                        let gone: Vec<u64> = q.waiting.iter().filter(|c| c.by == member(node)).map(|c| c.token).collect();
                        waiting.retain(|t| !gone.contains(t));
                        let mut grants = q.end(member(node));
                        prop_assert!(!q.holders.iter().any(|g| g.claim.by == member(node)));
                        grants.extend(q.settled(member(node)));
                        grants
                    }
                };
                for grant in &grants {
                    prop_assert_eq!(waiting.pop_front(), Some(grant.claim.token), "in the order of asking");
                    prop_assert!(grant.token > newest, "each grant has a larger token than all before");
                    newest = grant.token;
                }
                let writers = q.holders.iter().filter(|g| g.claim.mode == Exclusive).count();
                prop_assert!(writers == 0 || q.holders.len() == 1);
                prop_assert!(!q.holders.is_empty() || q.waiting.is_empty(), "nobody waits for nothing");
            }
        }
    }
}
