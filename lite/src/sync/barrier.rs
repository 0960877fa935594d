//! Barriers: the nodes of a group wait for each other, by the name of the barrier.
//!
//! The home of a barrier is the node with the lowest number in the group, which does not change. All
//! waiting nodes are released together, or all fail: when a node of the group leaves or dies, or when one
//! of them stops waiting. Nodes outside of the group do not matter. A name can be used again after the
//! barrier has opened or failed.
//!
//! A node that does not know whether the home has heard it comes again, under the same token. The home
//! therefore remembers which comings have ended: one that arrives late, or a second time, counts for nothing.

use super::waiting::Outcome;
use crate::Error;
use crate::base::member::MemberId;
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use crate::sync::SyncHome;
use crate::sync::request::Response;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use proto::NodeId;

struct Meeting {
    group: Vec<NodeId>,
    here: Vec<(MemberId, u64)>,
}

/// The waits of one incarnation that have ended here and that it may begin again, because it does not know
/// that they have begun.
#[derive(Default)]
struct EndedBarrier {
    /// The incarnation has no wait at a barrier below this token any more.
    oldest: u64,
    /// The tokens that have ended, from `oldest` on.
    tokens: BTreeSet<u64>,
}

impl EndedBarrier {
    /// Takes note that no wait below `oldest` goes on; returns true if `token` has ended.
    fn includes(&mut self, token: u64, oldest: u64) -> bool {
        if oldest > self.oldest {
            self.oldest = oldest;
            self.tokens = self.tokens.split_off(&oldest);
        }
        token < self.oldest || self.tokens.contains(&token)
    }

    fn insert(&mut self, token: u64) {
        if token >= self.oldest {
            self.tokens.insert(token);
        }
    }
}

/// The barriers whose home this node is.
#[derive(Default)]
pub(crate) struct Barriers {
    meetings: BTreeMap<String, Meeting>,
    ended: BTreeMap<MemberId, EndedBarrier>,
}

impl Barriers {
    #[cfg(feature = "testing")]
    pub(super) fn len(&self) -> usize {
        self.meetings.len()
    }

    #[cfg(feature = "testing")]
    pub(super) fn places_of(&self, which: &dyn Fn(MemberId) -> bool) -> usize {
        let waiting = self.meetings.values().flat_map(|meeting| &meeting.here).map(|(by, _)| *by);
        waiting.chain(self.ended.keys().copied()).filter(|by| which(*by)).count()
    }

    /// Removes the barriers of an incarnation that has ended, and returns the waits to end.
    pub(super) fn forget(&mut self, member: MemberId) -> Vec<(MemberId, u64)> {
        let of_it = self.meetings.extract_if(.., |_, meeting| meeting.group.contains(&member.0));
        let waits: Vec<_> = of_it.flat_map(|(_, meeting)| meeting.here).collect();
        self.end(&waits);
        self.ended.remove(&member);
        waits
    }

    /// Removes a barrier, and returns the waits to end.
    fn dissolve(&mut self, name: &str) -> Vec<(MemberId, u64)> {
        let waits = self.meetings.remove(name).map(|meeting| meeting.here).unwrap_or_default();
        self.end(&waits);
        waits
    }

    fn end(&mut self, waits: &[(MemberId, u64)]) {
        for (by, token) in waits {
            self.ended.entry(*by).or_default().insert(*token);
        }
    }
}

impl SyncHome {
    /// Serves, as a home, a node that comes to a barrier, perhaps again. `group` is ascending; `oldest` is
    /// the lowest token under which the node waits at a barrier here.
    pub(crate) fn enter_barrier(
        self: &Arc<Self>,
        by: MemberId,
        name: String,
        group: Vec<NodeId>,
        (token, oldest): (u64, u64),
    ) -> Result<Response, Error> {
        let refuse = |why: &str| Err(Error::Refused(why.into()));
        if group.first() != Some(&self.me) || !group.is_sorted() || !group.contains(&by.0) {
            return refuse("the group does not contain the barrier's home and the caller");
        }
        let mut objects = self.lock_for(&self.objects, by)?;
        let by = objects.member();
        let barriers = &mut objects.barriers;
        if barriers.ended.entry(by).or_default().includes(token, oldest) {
            sometimes!("a node came again to a barrier that had ended for it");
            return Ok(Response::Queued);
        }
        // The lock makes sure that the death of another node is seen here or ends the wait later.
        if let Some(dead) = group.iter().copied().find(|n| self.has_left(*n)) {
            sometimes!("a node came to a barrier of a dead node");
            let failed = barriers.dissolve(&name);
            drop(objects);
            self.tell_barrier(failed, &Err(Error::NodeDown(dead)));
            return Err(Error::NodeDown(dead));
        }
        let meeting = barriers
            .meetings
            .entry(name.clone())
            .or_insert_with(|| Meeting { group: group.clone(), here: Vec::new() });
        if meeting.group != group {
            return refuse("another group waits at this barrier");
        }
        if meeting.here.contains(&(by, token)) {
            return Ok(Response::Queued);
        }
        if meeting.here.iter().any(|(member, _)| member.0 == by.0) {
            return refuse("this node waits at this barrier already");
        }
        meeting.here.push((by, token));
        if meeting.here.len() + usize::from(planted(Bug::PartialBarrier)) >= group.len() {
            let released = barriers.dissolve(&name);
            drop(objects);
            // The last node is told as well: its answer can be lost, and this message is repeated until it
            // is acknowledged.
            self.tell_barrier(released, &Ok(Outcome::Open));
        }
        Ok(Response::Queued)
    }

    /// Serves, as a home, a node that stops waiting: all others fail, because the barrier cannot open.
    pub(crate) fn leave_barrier(self: &Arc<Self>, by: MemberId, name: &str, token: u64) {
        // The waits of an incarnation that has ended are gone.
        let Ok(mut objects) = self.lock_for(&self.objects, by) else { return };
        let barriers = &mut objects.barriers;
        let mut others = Vec::new();
        if barriers.meetings.get(name).is_some_and(|meeting| meeting.here.contains(&(by, token))) {
            sometimes!("a barrier failed because one waited no longer");
            others = barriers.dissolve(name);
            others.retain(|one| *one != (by, token));
        } else {
            barriers.end(&[(by, token)]);
        }
        drop(objects);
        self.tell_barrier(others, &Err(Error::Deadline));
    }

    pub(crate) fn tell_barrier(
        self: &Arc<Self>,
        who: Vec<(MemberId, u64)>,
        outcome: &Result<Outcome, Error>,
    ) {
        for (by, token) in who {
            self.wake(by, token, outcome.clone());
        }
    }
}
