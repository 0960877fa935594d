//! Locks: there is one exclusive holder, tokens grow, and the next holder is told of the death of a holder.

use super::{Check, MemberId, Tick};
use std::collections::{BTreeMap, BTreeSet};

/// The mode in which a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

/// The result of a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) member: MemberId,
    pub(crate) mode: Mode,
    pub(crate) token: u128,
    pub(crate) after_death: bool,
}

impl Hold {
    fn excludes(&self, other: &Self) -> bool {
        self.mode == Mode::Exclusive || other.mode == Mode::Exclusive
    }
}

#[derive(Default)]
struct Lock {
    holders: BTreeMap<Tick, Hold>,
    /// The newest hold of each kind.
    newest: Option<Hold>,
    newest_exclusive: Option<Hold>,
    tokens: BTreeSet<u128>,
    /// The incarnations that have ever claimed it exclusively.
    wanted: BTreeSet<MemberId>,
    /// True if a holder has died while it held the lock, and no task has held the lock exclusively since.
    died: bool,
}

impl Lock {
    /// Returns a hold that was granted later than `hold` and excludes it.
    fn later(&self, hold: &Hold) -> Option<Hold> {
        let all = if hold.mode == Mode::Exclusive { self.newest } else { self.newest_exclusive };
        all.filter(|newest| newest.token > hold.token)
    }
}

#[derive(Default)]
pub(super) struct Locks(BTreeMap<usize, Lock>);

impl Check {
    /// Records that a task claims a lock, and returns a token that its own token must exceed.
    pub(crate) fn claims(&self, lock: usize, member: MemberId, mode: Mode) -> u128 {
        let mut state = self.lock();
        let lock = state.locks.0.entry(lock).or_default();
        if mode == Mode::Exclusive {
            lock.wanted.insert(member);
        }
        lock.newest.map_or(0, |newest| newest.token)
    }

    /// Records that a task holds a lock from now on, and returns the number of the hold if it is not over
    /// already.
    pub(crate) fn granted(&self, number: usize, hold: Hold, floor: u128) -> Option<Tick> {
        let mut state = self.lock();
        let now = state.tick();
        let mut lock = state.locks.0.remove(&number).unwrap_or_default();
        let mut wrong = Vec::new();
        if hold.token <= floor || !lock.tokens.insert(hold.token) {
            wrong.push(("fencing tokens grow", format!("lock {number}: {hold:?} after {floor}")));
        }
        // A node that was paused may learn of its grant after its incarnation has ended, as all other
        // nodes know.
        let stale = lock.later(&hold);
        if let Some(later) = stale {
            if state.sees(later.member, hold.member) {
                wrong.push(("a lock has one holder", format!("lock {number}: {hold:?} after {later:?}")));
            }
        } else {
            let ended: Vec<_> =
                lock.holders.extract_if(.., |_, held| !state.sees(hold.member, held.member)).collect();
            for (_, held) in ended.iter().filter(|(_, held)| held.mode == Mode::Exclusive) {
                lock.died = true;
                // At least its home must know of the death.
                if !state.nodes.values().any(|lite| lite.settled_lives().contains(&held.member)) {
                    let seen = format!("lock {number}: {hold:?} after {held:?}");
                    wrong.push(("a dead node is cut off by all", seen));
                }
            }
            if let Some(other) = lock.holders.values().find(|other| hold.excludes(other)) {
                wrong.push(("a lock has one holder", format!("lock {number}: {hold:?} beside {other:?}")));
            }
            if lock.died && !hold.after_death {
                let seen = format!("lock {number}: {hold:?}, a holder has died");
                wrong.push(("the next holder is told of a death", seen));
            }
            if hold.after_death && lock.wanted.iter().all(|member| state.sees(hold.member, *member)) {
                let seen = format!("lock {number}: {hold:?}, nobody has died");
                wrong.push(("the next holder is told of a death", seen));
            }
            lock.newest = Some(hold);
            if hold.mode == Mode::Exclusive {
                (lock.newest_exclusive, lock.died) = (Some(hold), false);
            }
            lock.holders.insert(now, hold);
            if hold.after_death {
                *state.states.entry("a lock was granted after a death").or_default() += 1;
            }
            state.words.handed_over(number, now);
        }
        state.locks.0.insert(number, lock);
        for (property, seen) in wrong {
            state.violated(property, seen);
        }
        stale.is_none().then_some(now)
    }

    /// Returns the members that hold a lock exclusively.
    pub(crate) fn holders(&self) -> BTreeSet<MemberId> {
        let state = self.lock();
        let holds = state.locks.0.values().flat_map(|lock| lock.holders.values());
        holds.filter(|hold| hold.mode == Mode::Exclusive).map(|hold| hold.member).collect()
    }

    /// Records that a task begins to release a lock.
    pub(crate) fn released(&self, lock: usize, hold: Tick) {
        if let Some(lock) = self.lock().locks.0.get_mut(&lock) {
            lock.holders.remove(&hold);
        }
    }
}
