//! Numbers that must outlive the manager: node ids by name, incarnations and job numbers.

use proto::{Incarnation, JobId, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The largest node id.
const MAX_NODE: u16 = 4095;

/// How many numbers are taken from the store at once, so that few joins wait for a disk.
const BLOCK: u64 = 1024;

/// What a manager remembers of its former life.
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

/// Something to remember, before anything that follows it is sent.
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
            incarnations: Counter { next: saved.next_incarnation, reserved: saved.next_incarnation },
            jobs: Counter { next: saved.next_job, reserved: saved.next_job },
        }
    }

    /// The id for a node of that name: with `keep`, the one it had if it kept one, and from now on it is kept; otherwise any
    /// that is free. `live` are the ids and names of the members.
    pub(super) fn node(
        &mut self,
        name: &str,
        keep: bool,
        live: &BTreeMap<NodeId, &str>,
        save: &mut Vec<Record>,
    ) -> Option<NodeId> {
        let kept = self.nodes.get(name).filter(|node| keep && !live.contains_key(node));
        if let Some(&node) = kept {
            return Some(node);
        }
        let kept: BTreeSet<NodeId> = self.nodes.values().copied().collect();
        let free = (1..=MAX_NODE).map(NodeId).find(|id| !kept.contains(id) && !live.contains_key(id));
        let node = match free {
            Some(node) => node,
            None => {
                // One that is kept for a name whose node is away.
                let away = |node: &NodeId| !live.contains_key(node);
                let gone = self.nodes.iter().find(|(_, node)| away(node)).map(|(name, _)| name.clone())?;
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

    pub(super) fn incarnation(&mut self, save: &mut Vec<Record>) -> Incarnation {
        Incarnation(self.incarnations.take(Record::NextIncarnation, save))
    }

    /// A number for the binding of a name, larger than all before. It is of the same sequence as incarnations, so that there is
    /// nothing more to save.
    pub(super) fn binding(&mut self, save: &mut Vec<Record>) -> u64 {
        self.incarnations.take(Record::NextIncarnation, save)
    }

    pub(super) fn job(&mut self, save: &mut Vec<Record>) -> JobId {
        JobId(self.jobs.take(Record::NextJob, save))
    }
}

/// Counts up, never twice the same, over restarts.
#[derive(Debug)]
struct Counter {
    next: u64,
    /// What the store says was never given.
    reserved: u64,
}

impl Counter {
    fn take(&mut self, record: fn(u64) -> Record, save: &mut Vec<Record>) -> u64 {
        let number = self.next;
        self.next += 1;
        if number >= self.reserved {
            self.reserved = number + BLOCK;
            save.push(record(self.reserved));
        }
        number
    }
}
