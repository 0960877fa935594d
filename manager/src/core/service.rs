//! Nodes in service and out of service: drains, their undoing, and the one answer to the question whether a
//! node takes jobs.
//!
//! The state is kept by the name of a node and saved, so that it outlives the manager's process and the
//! node's boots. A node without a record is in service.

use super::members::Live;
use super::vacate::Vacation;
use super::{ConnId, Core, Record};
use platform::Instant;
use proto::{JobId, NodeId, NodeStanding, NodeView, Reason, Refusal, ToClient, Withdrawal, printable};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The length of a page of the list of nodes, in bytes.
const PAGE: usize = 256 << 10;
/// The maximum number of names that are out of service.
const MAX_WITHDRAWN: usize = 8192;

/// The state of a node that is out of service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Withdrawn {
    /// The node's job may end, within this time if one is given. Then its memory of regions moves elsewhere.
    Draining(Option<Duration>),
    /// The node has no job.
    Drained,
    /// The node's machine was turned off.
    Off,
    /// A rollout replaces the node's image.
    Upgrading,
    /// The node has failed in a rollout.
    Failed,
}

/// A node that is out of service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithdrawnRecord {
    /// The node's name.
    pub name: String,
    /// The state.
    pub state: Withdrawn,
    /// The circumstances.
    pub why: Withdrawal,
}

#[derive(Debug)]
struct Entry {
    record: WithdrawnRecord,
    /// The time at which the node's job is cancelled.
    deadline: Option<Instant>,
    vacation: Option<Vacation>,
}

/// The nodes out of service, by name.
#[derive(Debug, Default)]
pub(super) struct Service {
    withdrawn: BTreeMap<String, Entry>,
    /// The names of those that drain.
    draining: BTreeSet<String>,
}

impl Service {
    /// Returns the deadline of the drain that ends first.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.draining.iter().filter_map(|name| self.withdrawn.get(name)?.deadline).min()
    }

    /// Moves all deadlines by the time for which the manager was deaf.
    pub(super) fn forgive(&mut self, late: Duration) {
        let deadlines = self.withdrawn.values_mut().filter_map(|entry| entry.deadline.as_mut());
        deadlines.for_each(|at| *at = *at + late);
        self.withdrawn.values_mut().filter_map(|e| e.vacation.as_mut()).for_each(|v| v.forgive(late));
    }

    /// Returns true if a node of this name is out of service.
    pub(super) fn is_withdrawn(&self, name: &str) -> bool {
        self.withdrawn.contains_key(name)
    }

    /// Returns the progress of a node that is out of service.
    pub(super) fn vacation(&mut self, name: &str) -> Option<&mut Option<Vacation>> {
        self.withdrawn.get_mut(name).map(|entry| &mut entry.vacation)
    }

    fn insert(&mut self, record: WithdrawnRecord, now: Instant) {
        let deadline = match record.state {
            Withdrawn::Draining(limit) => {
                self.draining.insert(record.name.clone());
                limit.map(|limit| now + limit)
            }
            _ => {
                self.draining.remove(&record.name);
                None
            }
        };
        let vacation = self.withdrawn.remove(&record.name).and_then(|former| former.vacation);
        self.withdrawn.insert(record.name.clone(), Entry { record, deadline, vacation });
    }

    fn remove(&mut self, name: &str) -> Option<Entry> {
        self.draining.remove(name);
        self.withdrawn.remove(name)
    }
}

/// A request to drain a node.
#[derive(Debug)]
pub(super) struct Drain {
    pub(super) node: String,
    pub(super) reason: Reason,
    pub(super) deadline: Option<Duration>,
    pub(super) force: bool,
}

impl Core {
    /// Takes over the nodes that a former process had out of service. The time of a drain begins again.
    pub(super) fn restore_service(&mut self, records: Vec<WithdrawnRecord>) {
        records.into_iter().for_each(|record| self.service.insert(record, self.now));
    }

    /// Returns the state of a node. No other place decides whether a node takes jobs.
    pub(super) fn standing(&self, name: &str, live: Option<&Live>) -> NodeStanding {
        if let Some(Entry { record, deadline, vacation }) = self.service.withdrawn.get(name) {
            let why = record.why.clone();
            let held = vacation.as_ref().and_then(Vacation::obstacle);
            return match record.state {
                Withdrawn::Draining(_) => {
                    let left = |at: Instant| u64::try_from((at - self.now).as_millis()).unwrap_or(u64::MAX);
                    NodeStanding::Draining { why, left_ms: deadline.map(left), held }
                }
                Withdrawn::Drained => NodeStanding::Drained(why),
                Withdrawn::Off => NodeStanding::Off(why),
                Withdrawn::Upgrading => NodeStanding::Upgrading { why, held },
                Withdrawn::Failed => NodeStanding::Failed(why),
            };
        }
        match live {
            None => NodeStanding::Missing,
            Some(live) if live.conn.is_some() => NodeStanding::Ready,
            Some(live) if live.awaited => NodeStanding::Awaited,
            Some(_) => NodeStanding::Silent,
        }
    }

    /// Returns the reason for which a member is out of service, for people: `node 1 (a) is drained by U:
    /// REASON`.
    pub(super) fn withdrawn(&self, node: NodeId) -> Option<Reason> {
        let live = self.members.get(node)?;
        let name = &live.member.name;
        self.service.withdrawn.get(name)?;
        let objection = self.standing(name, Some(live)).objection()?;
        Some(format!("{} is {objection}", live.label()))
    }

    /// Returns the client of a connection, for people.
    pub(super) fn who(&self, conn: ConnId) -> String {
        printable(&self.peer(conn))
    }

    /// Returns the circumstances of a change that happens now.
    pub(super) fn withdrawal(&self, who: String, reason: &str) -> Withdrawal {
        Withdrawal { reason: printable(reason), who, since_ms: self.unix_ms() }
    }

    /// Puts a node into a state out of service.
    pub(super) fn withdraw(&mut self, name: &str, state: Withdrawn, why: Withdrawal) {
        let record = WithdrawnRecord { name: name.into(), state, why };
        self.save(vec![Record::Withdrawn(record.clone())]);
        self.service.insert(record, self.now);
    }

    /// Puts a node back into service. Returns false if it was in service.
    pub(super) fn restore_to_service(&mut self, name: &str) -> bool {
        let Some(entry) = self.service.remove(name) else { return false };
        self.save(vec![Record::InService(name.into())]);
        self.end_vacation(name, entry.vacation);
        true
    }

    /// Takes a node out of service for a client.
    pub(super) fn drain(&mut self, conn: ConnId, drain: Drain) {
        let known = self.members.named(&drain.node).is_some();
        if !known && !self.service.withdrawn.contains_key(&drain.node) {
            return self.unknown_node(conn, &drain.node);
        }
        if let Some(objection) = self.drain_objection(&drain) {
            return self.fail_client(conn, objection);
        }
        let Drain { node: name, reason, deadline, .. } = drain;
        let why = self.withdrawal(self.who(conn), &reason);
        self.log(format!("{} drains {}: {}", why.who, printable(&name), why.reason));
        self.withdraw(&name, Withdrawn::Draining(deadline), why);
        self.end_drain_if_idle(&name);
        self.tell_standing(conn, &name);
    }

    fn drain_objection(&self, drain: &Drain) -> Option<Reason> {
        let name = &drain.node;
        if drain.reason.len() > Withdrawal::MAX_REASON {
            return Some(format!("a reason has at most {} bytes", Withdrawal::MAX_REASON));
        }
        if let Some(objection) = self.store_objection() {
            return Some(objection);
        }
        if let Some(objection) = self.is_upgraded(name) {
            return Some(objection);
        }
        if self.service.withdrawn.len() >= MAX_WITHDRAWN {
            return Some(format!("{MAX_WITHDRAWN} nodes are out of service already"));
        }
        let takes = |live: &Live| self.standing(&live.member.name, Some(live)).objection().is_none();
        let mut others = self.members.0.values().filter(|live| live.member.name != *name);
        if !drain.force && self.members.named(name).is_some_and(takes) && !others.any(takes) {
            let name = printable(name);
            return Some(format!("{name} is the last node that takes jobs: --force drains it all the same"));
        }
        None
    }

    /// Puts a node back into service for a client.
    pub(super) fn undrain(&mut self, conn: ConnId, name: &str) {
        let shown = printable(name);
        if let Some(objection) = self.store_objection().or_else(|| self.is_upgraded(name)) {
            return self.fail_client(conn, objection);
        }
        if !self.restore_to_service(name) {
            if self.members.named(name).is_none() {
                return self.unknown_node(conn, name);
            }
            return self.fail_client(conn, format!("node {shown} is in service already"));
        }
        self.log(format!("{} puts {shown} back into service", self.who(conn)));
        self.tell_standing(conn, name);
        self.start_waiting();
    }

    /// Returns the reason for which the state of a node cannot be changed.
    fn is_upgraded(&self, name: &str) -> Option<Reason> {
        let entry = self.service.withdrawn.get(name)?;
        let upgrades = entry.record.state == Withdrawn::Upgrading;
        upgrades.then(|| format!("a rollout upgrades {}: stop the rollout first", printable(name)))
    }

    fn unknown_node(&mut self, conn: ConnId, name: &str) {
        self.refuse_client(conn, Refusal::NotFound, format!("no node {} is known", printable(name)));
    }

    fn tell_standing(&mut self, conn: ConnId, name: &str) {
        let standing = self.standing(name, self.members.named(name));
        self.commit_to_client(conn, ToClient::NodeChanged { standing });
    }

    /// Returns the job of a node.
    fn job_of(&self, name: &str) -> Option<JobId> {
        self.members.named(name)?.job
    }

    /// Ends the drain of a node that has no job and no memory of regions.
    fn end_drain_if_idle(&mut self, name: &str) {
        if !self.service.draining.contains(name) || self.job_of(name).is_some() || !self.is_vacant(name) {
            return;
        }
        if let Some(entry) = self.service.withdrawn.get(name) {
            let why = entry.record.why.clone();
            self.withdraw(name, Withdrawn::Drained, why);
            self.log(format!("{} is drained", printable(name)));
        }
    }

    /// Ends the drains of nodes whose job has ended and whose memory of regions has moved.
    pub(super) fn end_idle_drains(&mut self) {
        let names: Vec<String> = self.service.draining.iter().cloned().collect();
        names.iter().for_each(|name| self.end_drain_if_idle(name));
    }

    /// Cancels the jobs of drained nodes whose time is over.
    pub(super) fn expire_drains(&mut self) {
        let now = self.now;
        let mut late = Vec::new();
        for (name, entry) in &mut self.service.withdrawn {
            if entry.deadline.is_some_and(|at| at <= now) {
                entry.deadline = None;
                late.push(name.clone());
            }
        }
        for name in late {
            if let Some((node, job)) = self.members.named(&name).and_then(|l| Some((l.member.node, l.job?))) {
                let reason = self.withdrawn(node).unwrap_or_default();
                self.fail_job(job, format!("{reason}, and its time to end is over"));
            }
        }
    }

    /// Notes that a node has left, because a client has had its machine turned off.
    pub(super) fn has_been_turned_off(&mut self, name: &str, who: String) {
        if !self.service.withdrawn.contains_key(name) {
            let why = self.withdrawal(who, "");
            self.withdraw(name, Withdrawn::Off, why);
        }
    }

    /// Notes that a node has joined: a machine that was turned off is on again.
    pub(super) fn has_been_turned_on(&mut self, name: &str) {
        if self.service.withdrawn.get(name).is_some_and(|entry| entry.record.state == Withdrawn::Off) {
            self.restore_to_service(name);
        }
    }

    /// Returns the names of the nodes that are out of service and no members, with their states.
    pub(super) fn absent(&self) -> Vec<(&str, NodeStanding)> {
        let is_member = |name: &str| self.members.0.values().any(|live| live.member.name == name);
        let names = self.service.withdrawn.keys().map(String::as_str).filter(|name| !is_member(name));
        names.map(|name| (name, self.standing(name, None))).collect()
    }

    /// Tells a client a page of all nodes: those with names after `after`.
    pub(super) fn tell_node_list(&mut self, conn: ConnId, after: &str) {
        let mut names: BTreeMap<&str, Option<&Live>> =
            self.service.withdrawn.keys().map(|name| (name.as_str(), None)).collect();
        names.extend(self.members.0.values().map(|live| (live.member.name.as_str(), Some(live))));
        let (mut nodes, mut bytes, mut more) = (Vec::new(), 0, false);
        for (name, live) in names.into_iter().filter(|&(name, _)| name > after) {
            let view = self.listed(name, live);
            bytes += proto::encode(&view).len();
            if bytes > PAGE {
                more = true;
                break;
            }
            nodes.push(view);
        }
        self.tell_client(conn, ToClient::NodeList { nodes, more });
    }

    fn listed(&self, name: &str, live: Option<&Live>) -> NodeView {
        NodeView {
            name: name.into(),
            standing: self.standing(name, live),
            member: live.map(|live| self.status(live)),
            job: live.and_then(|live| live.job),
            image: live.and_then(|live| live.image.clone()),
        }
    }
}
