//! Invariants of the manager across all its restarts: each number is used once, and what was saved is found
//! again.

use manager::core::{ConnId, Message, Record, Saved};
use proto::{Attempt, Hello, Incarnation, JobId, JobStanding, JobStart, NodeId, ToClient, ToManager, ToNode};
use std::collections::{BTreeMap, BTreeSet};

/// A member's request, with its number.
type Request = ((NodeId, Incarnation), u32);

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The names in the store before the records of `submitted`.
    names: BTreeMap<String, NodeId>,
    /// The records that were submitted since, and how many of them the store has reported as saved.
    submitted: Vec<Record>,
    saved: usize,
    /// The least values of the two counters that a store may report.
    least: [u64; 2],
    /// The last number of an incarnation or a binding, and the last job number.
    last: [u64; 2],
    /// The jobs of the present process of the manager.
    jobs: BTreeSet<u64>,
    /// The nodes that wait for an answer, with their names if they keep an id; and the bindings that do.
    joining: BTreeMap<ConnId, Option<String>>,
    binding: BTreeSet<(ConnId, u32)>,
    /// All requests of members to bind a name, each with true if it has come again: its first answer may have
    /// been lost, and the next one gives the same number.
    asked: BTreeMap<Request, bool>,
    /// The numbers of the bindings, each with its request.
    bindings: BTreeMap<u64, Request>,
    /// The members, by connection, and the vouchers that they were given.
    members: BTreeMap<ConnId, (NodeId, Incarnation)>,
    vouchers: BTreeSet<((NodeId, Incarnation), NodeId, u64)>,
    /// The incarnations whose end some member was told.
    dead: BTreeSet<(NodeId, Incarnation)>,
    /// The incarnations whose end some process has wanted to save.
    left: BTreeSet<(NodeId, Incarnation)>,
    /// The numbers under which jobs were started, by all processes.
    started: BTreeSet<u64>,
    /// The jobs that were acknowledged as queued.
    acknowledged: BTreeSet<JobId>,
    /// The part of each member: the tag of the job, and the number under which it was started.
    parts: BTreeMap<(NodeId, Incarnation), (String, JobId)>,
    violation: Option<String>,
}

fn apply(names: &mut BTreeMap<String, NodeId>, record: &Record) {
    match record {
        Record::Node(name, node) => drop(names.insert(name.clone(), *node)),
        Record::Forget(name) => drop(names.remove(name)),
        _ => {}
    }
}

impl Ledger {
    pub(super) fn violation(&self) -> Option<String> {
        self.violation.clone()
    }

    fn violated(&mut self, seen: String) {
        self.violation.get_or_insert(seen);
    }

    /// Checks the state that a new process of the manager has found in its store.
    pub(super) fn opened(&mut self, found: &Saved) {
        let nodes: BTreeMap<String, NodeId> = found.nodes.iter().cloned().collect();
        let mut names = self.names.clone();
        let (sure, unsure) = self.submitted.split_at(self.saved);
        sure.iter().for_each(|record| apply(&mut names, record));
        let mut known = names == nodes;
        for record in unsure {
            apply(&mut names, record);
            known |= names == nodes;
        }
        if !known {
            let (all, saved) = (self.submitted.clone(), self.saved);
            self.violated(format!("the store holds {nodes:?}, of {all:?}, {saved} of which were saved"));
        }
        let counters = [found.next_incarnation, found.next_job];
        for (at, next) in counters.into_iter().enumerate() {
            if next < self.least[at] || next <= self.last[at] {
                let (least, last) = (self.least[at], self.last[at]);
                self.violated(format!("the store says {next}: {least} was saved, and {last} was given"));
            }
        }
        for job in &self.acknowledged {
            let is = |known: &JobId| known == job;
            if !found.jobs.iter().any(|record| is(&record.first)) && !found.history.iter().any(|r| is(&r.job))
            {
                self.violation.get_or_insert(format!("{job:?} was acknowledged, and the store has lost it"));
            }
        }
        self.least = counters;
        (self.names, self.submitted, self.saved) = (nodes, found.reservation().to_vec(), 0);
        self.jobs.clear();
        self.joining.clear();
        self.binding.clear();
    }

    pub(super) fn submits(&mut self, record: &Record) {
        if let Record::Left(node, incarnation) = record {
            self.left.insert((*node, *incarnation));
        }
        self.submitted.push(record.clone());
    }

    /// Records that the next `count` records are on the disk.
    pub(super) fn saved(&mut self, count: usize) {
        for record in &self.submitted[self.saved..self.saved + count] {
            match *record {
                Record::NextIncarnation(next) => self.least[0] = self.least[0].max(next),
                Record::NextJob(next) => self.least[1] = self.least[1].max(next),
                _ => {}
            }
        }
        self.saved += count;
    }

    /// Notes a message of a node or a client that is about to be handled.
    pub(super) fn hears(&mut self, conn: ConnId, member: bool, bytes: &[u8]) {
        if !member {
            if let Ok(Hello::Resume(resume)) = proto::decode(bytes) {
                self.members.insert(conn, (resume.node, resume.incarnation));
            }
            if let Ok(Hello::Node(join)) = proto::decode(bytes) {
                self.joining.insert(conn, join.keep_id.then_some(join.name));
            }
        } else if let Ok(message) = proto::decode::<ToManager>(bytes) {
            self.part_ends(conn, &message);
            let ToManager::NameBind { request, .. } = message else { return };
            self.binding.insert((conn, request));
            if let Some(&member) = self.members.get(&conn) {
                let again = self.asked.contains_key(&(member, request));
                self.asked.insert((member, request), again);
            }
        }
    }

    /// Notes the end of a member's part of a job.
    fn part_ends(&mut self, conn: ConnId, message: &ToManager) {
        let Some(member) = self.members.get(&conn) else { return };
        let Some((_, job)) = self.parts.get(member) else { return };
        let over = match message {
            ToManager::JobDone { job: of, .. }
            | ToManager::JobFailed { job: of, .. }
            | ToManager::JobOver { job: of } => of == job,
            ToManager::Jobs { jobs, .. } => !jobs.iter().any(|(of, standing)| {
                of == job && matches!(standing, JobStanding::Loading | JobStanding::Running)
            }),
            _ => false,
        };
        if over {
            self.parts.remove(member);
        }
    }

    /// Checks the start of a part: no live member has a part of the same job under another number.
    fn part_begins(&mut self, conn: ConnId, start: &JobStart) {
        let (Some(tag), Some(&member)) = (start.args.first(), self.members.get(&conn)) else { return };
        let twice = self
            .parts
            .iter()
            .find(|(other, (of, number))| of == tag && *number != start.job && !self.left.contains(other));
        if let Some((other, (_, number))) = twice {
            self.violated(format!("{:?} starts while {other:?} runs the job as {number:?}", start.job));
        }
        self.parts.insert(member, (tag.clone(), start.job));
    }

    /// Checks an answer of the manager.
    pub(super) fn says(&mut self, conn: ConnId, message: &Message) {
        let shared = match message {
            Message::ToNodes(bytes) => proto::decode(bytes).ok().map(Message::ToNode),
            _ => None,
        };
        let message = shared.as_ref().unwrap_or(message);
        self.kills_or_revives(conn, message);
        match message {
            Message::ToNode(ToNode::Welcome(welcome)) => {
                self.given(0, welcome.incarnation.0);
                self.members.insert(conn, (welcome.node, welcome.incarnation));
                if let Some(Some(name)) = self.joining.remove(&conn) {
                    self.keeps(&name, welcome.node);
                }
            }
            Message::ToNode(ToNode::Name { request, result }) => {
                if self.binding.remove(&(conn, *request))
                    && let Ok((_, number)) = result
                    && let Some(number) = number.first_chunk()
                {
                    self.bound(conn, *request, u64::from_le_bytes(*number));
                }
            }
            Message::ToNode(ToNode::JobStart(start)) => self.starts(conn, start),
            Message::ToNode(ToNode::JobStartWith { start, .. }) => self.starts(conn, start),
            Message::ToClient(ToClient::Queued { job, .. } | ToClient::Submitted { job }) => {
                self.acknowledged.insert(*job);
            }
            Message::ToNode(ToNode::Voucher { to, stamp, .. }) => {
                if let Some(requester) = self.members.get(&conn) {
                    self.vouchers.insert((*requester, *to, *stamp));
                }
            }
            _ => {}
        }
    }

    /// Checks that one process alone starts a job.
    fn starts(&mut self, conn: ConnId, start: &JobStart) {
        let job = start.job.0;
        self.last[1] = self.last[1].max(job);
        if self.jobs.insert(job) && !self.started.insert(job) {
            self.violated(format!("the number {job} was started by two processes"));
        }
        self.part_begins(conn, start);
    }

    /// Checks that an incarnation that was declared dead stays dead.
    fn kills_or_revives(&mut self, conn: ConnId, message: &Message) {
        let revived = match message {
            Message::ToNode(ToNode::Left { node, incarnation, .. }) => {
                self.dead.insert((*node, *incarnation));
                None
            }
            Message::ToNode(ToNode::Joined(member)) => Some((member.node, member.incarnation)),
            Message::ToNode(
                ToNode::Resumed(_)
                | ToNode::HeartbeatAck { .. }
                | ToNode::Voucher { .. }
                | ToNode::JobStart(_)
                | ToNode::JobStartWith { .. },
            ) => self.members.get(&conn).copied(),
            _ => None,
        };
        if let Some(member) = revived.filter(|member| self.dead.contains(member)) {
            self.violated(format!("{member:?} was declared dead, and is told {message:?}"));
        }
    }

    /// Returns true if a manager has given the voucher for an attempt.
    pub(super) fn has_vouched(&self, attempt: &Attempt) -> bool {
        self.vouchers.contains(&(attempt.requester, attempt.responder.0, attempt.stamp))
    }

    fn given(&mut self, which: usize, number: u64) {
        let last = std::mem::replace(&mut self.last[which], number);
        if number <= last {
            self.violated(format!("the number {number} was given after {last}"));
        }
    }

    /// Checks the number of a binding.
    fn bound(&mut self, conn: ConnId, request: u32, number: u64) {
        let Some(&member) = self.members.get(&conn) else {
            return self.violated(format!("a binding was given to {conn:?}, which is no member"));
        };
        let request = (member, request);
        let former = *self.bindings.entry(number).or_insert(request);
        if former != request {
            self.violated(format!("the number {number} was given to {former:?} and {request:?}"));
        }
        if self.asked.get(&request) != Some(&true) {
            self.given(0, number);
        }
    }

    /// Checks that a node gets the id that was kept for its name, if one was.
    fn keeps(&mut self, name: &str, node: NodeId) {
        let mut names = self.names.clone();
        self.submitted.iter().for_each(|record| apply(&mut names, record));
        if names.get(name).is_some_and(|kept| *kept != node) {
            self.violated(format!("{name} is {node}, and was to be {:?}", names.get(name)));
        }
    }
}
