//! Numbers that must outlive the manager: node ids by name, incarnations and job numbers.

use crate::planted::{Bug, planted};
use proto::{Incarnation, JobId, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The largest node id.
const MAX_NODE: u16 = 4095;

/// How many numbers are reserved in the store at once.
const BLOCK: u64 = Saved::RESERVED;

/// What a manager remembers of its former life. From both counters on, [`RESERVED`](Self::RESERVED) numbers have been
/// reserved for this one: the store has saved [`reservation`](Self::reservation) already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The id of each node that joined and wanted to keep it.
    pub nodes: Vec<(String, NodeId)>,
    /// No incarnation from here on was ever given.
    pub next_incarnation: u64,
    /// No job number from here on was ever given.
    pub next_job: u64,
}

impl Default for Saved {
    fn default() -> Self {
        Self { nodes: Vec::new(), next_incarnation: 1, next_job: 1 }
    }
}

impl Saved {
    /// How many numbers a manager may give out before it has saved anything.
    pub const RESERVED: u64 = 1024;

    /// What the store saves before a manager begins with this.
    #[must_use]
    pub fn reservation(&self) -> [Record; 2] {
        [
            Record::NextIncarnation(self.next_incarnation + Self::RESERVED),
            Record::NextJob(self.next_job + Self::RESERVED),
        ]
    }
}

/// Something to remember.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The name has that id.
    Node(String, NodeId),
    /// The name has no id any more.
    Forget(String),
    /// The new [`Saved::next_incarnation`].
    NextIncarnation(u64),
    /// The new [`Saved::next_job`].
    NextJob(u64),
}

/// Gives out numbers.
#[derive(Debug)]
pub(super) struct Identities {
    nodes: BTreeMap<String, NodeId>,
    incarnations: Counter,
    jobs: Counter,
}

impl Identities {
    pub(super) fn new(saved: Saved) -> Self {
        Self {
            nodes: saved.nodes.into_iter().collect(),
            incarnations: Counter::new(saved.next_incarnation),
            jobs: Counter::new(saved.next_job),
        }
    }

    /// The id for a node of that name: with `keep`, the one it had if it kept one, and from now on it is kept; otherwise any
    /// that is free. `lives` says whether a member has an id.
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
                // One that is kept for a name whose node is away.
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

    /// A new incarnation, if one is reserved.
    pub(super) fn incarnation(&mut self, save: &mut Vec<Record>) -> Option<Incarnation> {
        self.incarnations.take(Record::NextIncarnation, save).map(Incarnation)
    }

    /// A number for the binding of a name, larger than all before, if one is reserved. It is of the same sequence as
    /// incarnations, so that there is nothing more to save.
    pub(super) fn binding(&mut self, save: &mut Vec<Record>) -> Option<u64> {
        let number = self.incarnations.take(Record::NextIncarnation, save)?;
        Some(if planted(Bug::BindingStands) { 1 } else { number })
    }

    /// A new job number, if one is reserved.
    pub(super) fn job(&mut self, save: &mut Vec<Record>) -> Option<JobId> {
        self.jobs.take(Record::NextJob, save).map(JobId)
    }

    /// Takes note of what is on the disk.
    pub(super) fn saved(&mut self, record: &Record) {
        match *record {
            Record::NextIncarnation(next) => self.incarnations.saved(next),
            Record::NextJob(next) => self.jobs.saved(next),
            Record::Node(..) | Record::Forget(_) => {}
        }
    }
}

/// Counts up, never twice the same, over restarts. It gives out what the store has reserved, and has more reserved long
/// before it needs them, so that nobody waits for a disk.
#[derive(Debug)]
struct Counter {
    next: u64,
    /// What the store says was never given.
    reserved: u64,
    /// What it shall say.
    asked: u64,
}

impl Counter {
    /// A counter with a first block reserved.
    fn new(next: u64) -> Self {
        let next = if planted(Bug::NumbersBeginAnew) { 1 } else { next };
        Self { next, reserved: next + BLOCK, asked: next + BLOCK }
    }

    fn take(&mut self, record: fn(u64) -> Record, save: &mut Vec<Record>) -> Option<u64> {
        if self.next >= self.reserved {
            return None;
        }
        let number = self.next;
        self.next += 1;
        if self.asked - self.next < BLOCK / 2 {
            self.asked += BLOCK;
            save.push(record(self.asked));
        }
        Some(number)
    }

    fn saved(&mut self, next: u64) {
        self.reserved = self.reserved.max(next);
    }
}
