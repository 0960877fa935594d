//! Numbers that must survive a restart of the manager: node ids by name, incarnations and job numbers.

use super::records::{Record, Saved, nanos};
use crate::planted::{Bug, planted};
use platform::Instant;
use proto::{Incarnation, JobId, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The largest node id.
const MAX_NODE: u16 = 4095;

/// The number of numbers that are reserved in the store at once.
const BLOCK: u64 = Saved::RESERVED;

/// The source of numbers.
#[derive(Debug)]
pub(super) struct Identities {
    nodes: BTreeMap<String, NodeId>,
    incarnations: Counter,
    jobs: Counter,
    /// The number of this process of the manager.
    pub(super) epoch: u64,
    clock: Clock,
}

/// The clock of all processes of the manager, one after the other, in nanoseconds. It never goes back.
#[derive(Debug)]
struct Clock {
    /// The time at which this process has started.
    base: u64,
    /// The first time that is not reserved in the store, and that once all reservations are saved.
    reserved: u64,
    requested: u64,
}

impl Identities {
    pub(super) fn new(saved: &Saved) -> Self {
        let reserved = saved.clock.saturating_add(nanos(Saved::CLOCK));
        Self {
            nodes: saved.nodes.iter().cloned().collect(),
            incarnations: Counter::new(saved.next_incarnation),
            jobs: Counter::new(saved.next_job),
            epoch: saved.epoch + 1,
            clock: Clock { base: saved.clock, reserved, requested: reserved },
        }
    }

    /// Returns the time of the manager's clock when this process has run since `now`.
    pub(super) fn time(&self, now: Instant) -> u64 {
        self.clock.base.saturating_add(now.as_nanos())
    }

    /// Returns the same time if a later process of the manager begins after it.
    pub(super) fn reserved_time(&self, now: Instant) -> Option<u64> {
        Some(self.time(now)).filter(|time| *time < self.clock.reserved)
    }

    /// Reserves more time if half of the reserved time has passed.
    pub(super) fn reserve_time(&mut self, now: Instant, save: &mut Vec<Record>) {
        let block = nanos(Saved::CLOCK);
        if self.clock.requested.saturating_sub(self.time(now)) < block / 2 {
            self.clock.requested = self.clock.requested.saturating_add(block);
            save.push(Record::Clock(self.clock.requested));
        }
    }

    /// Returns the id for a node with this name. With `keep`, this is the id that was kept for the name, if
    /// any, and it is kept from now on; otherwise any free id. `lives` returns whether a member has an id.
    pub(super) fn node(
        &mut self,
        name: &str,
        keep: bool,
        lives: impl Fn(&NodeId) -> bool,
        save: &mut Vec<Record>,
    ) -> Option<NodeId> {
        let kept = self.nodes.get(name).filter(|node| keep && !lives(node));
        if let Some(&node) = kept {
            return Some(node);
        }
        let kept: BTreeSet<NodeId> = self.nodes.values().copied().collect();
        let free = (1..=MAX_NODE).map(NodeId).find(|id| !kept.contains(id) && !lives(id));
        let node = match free {
            Some(node) => node,
            None => {
                // An id that is kept for a name whose node is no member.
                let gone = self.nodes.iter().find(|(_, node)| !lives(node)).map(|(name, _)| name.clone())?;
                let node = self.nodes.remove(&gone)?;
                save.push(Record::Forget(gone));
                node
            }
        };
        if keep {
            self.nodes.insert(name.into(), node);
            save.push(Record::Node(name.into(), node));
        }
        Some(node)
    }

    /// Returns true if an id is kept for some name whose node is no member.
    pub(super) fn any_absent(&self, lives: impl Fn(&NodeId) -> bool) -> bool {
        self.nodes.values().any(|node| !lives(node))
    }

    /// Returns a new incarnation, if one is reserved.
    pub(super) fn incarnation(&mut self, save: &mut Vec<Record>) -> Option<Incarnation> {
        self.incarnations.take(Record::NextIncarnation, save).map(Incarnation)
    }

    /// Returns a number for the binding of a name, larger than all before, if one is reserved. It comes from
    /// the sequence of incarnations, so that there is nothing more to save.
    pub(super) fn binding(&mut self, save: &mut Vec<Record>) -> Option<u64> {
        let number = self.incarnations.take(Record::NextIncarnation, save)?;
        Some(if planted(Bug::BindingStands) { 1 } else { number })
    }

    /// Returns a new job number, if one is reserved.
    pub(super) fn job(&mut self, save: &mut Vec<Record>) -> Option<JobId> {
        self.jobs.take(Record::NextJob, save).map(JobId)
    }

    /// Records that `record` is on the disk.
    pub(super) fn saved(&mut self, record: &Record) {
        match *record {
            Record::NextIncarnation(next) => self.incarnations.saved(next),
            Record::NextJob(next) => self.jobs.saved(next),
            Record::Clock(time) => self.clock.reserved = self.clock.reserved.max(time),
            _ => {}
        }
    }
}

/// A counter that never returns a number twice, also across restarts. It returns only numbers that are
/// reserved in the store, and reserves more long before it needs them, so that no caller waits for a disk.
#[derive(Debug)]
struct Counter {
    next: u64,
    /// The first number that is not reserved in the store.
    reserved: u64,
    /// The value of `reserved` once all requested reservations are saved.
    requested: u64,
}

impl Counter {
    /// Returns a counter whose first block is reserved.
    fn new(next: u64) -> Self {
        let next = if planted(Bug::NumbersBeginAnew) { 1 } else { next };
        Self { next, reserved: next + BLOCK, requested: next + BLOCK }
    }

    fn take(&mut self, record: fn(u64) -> Record, save: &mut Vec<Record>) -> Option<u64> {
        if self.next >= self.reserved {
            return None;
        }
        let number = self.next;
        self.next += 1;
        if self.requested - self.next < BLOCK / 2 {
            self.requested += BLOCK;
            save.push(record(self.requested));
        }
        Some(number)
    }

    fn saved(&mut self, next: u64) {
        self.reserved = self.reserved.max(next);
    }
}
