//! Jobs: choosing the nodes, streaming the input to them and the output back, and how jobs end.

use super::cut::Cutter;
use super::members::{STORE_IS_SLOW, one_line};
use super::{Action, ConnId, Core, Message};
use platform::Instant;
use proto::{
    CutRule, InputFile, JobId, JobReport, JobStart, NodeId, Reason, ToClient, ToManager, ToNode, encode,
};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of input in one message, at most.
const MAX_INPUT: usize = 48 << 10;

/// Bytes of output in one message, at most.
const MAX_OUTPUT: usize = 64 << 10;

/// Bytes of the longest description of a job.
const MAX_START: usize = 256 << 10;

/// The jobs under way.
#[derive(Debug, Default)]
pub(super) struct Jobs(BTreeMap<JobId, Job>);

impl Jobs {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.0.values().filter_map(|job| job.deadline).min()
    }
}

#[derive(Debug)]
struct Job {
    client: ConnId,
    /// The nodes by rank.
    parts: Vec<Part>,
    cutter: Cutter,
    phase: Phase,
    /// When the job fails if those whom it waits for now do nothing. None while nodes compute: their leases end it.
    deadline: Option<Instant>,
    /// Whether the client's messages are taken.
    reading: bool,
    /// When the first byte of input came, when the last was handed to the network.
    first_input: Option<Instant>,
    last_input: Option<Instant>,
    /// Bytes of output on their way to the client.
    output_in_flight: usize,
}

#[derive(Debug)]
struct Part {
    node: NodeId,
    accepted: bool,
    report: Option<JobReport>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nodes have been asked.
    Starting,
    /// Input comes from the client.
    Streaming,
    /// Nodes have all input.
    Running,
}

impl Job {
    fn rank(&self, node: NodeId) -> Option<usize> {
        self.parts.iter().position(|part| part.node == node)
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.parts.iter().map(|part| part.node).collect()
    }
}

/// Which nodes a client wants for a job.
pub(super) enum Wanted {
    /// So many, or all for 0.
    Any(usize),
    /// Those of these names, by rank.
    Named(Vec<String>),
}

/// The nodes of a new job by rank, and how its input is cut.
struct Choice {
    nodes: Vec<NodeId>,
    cut: CutRule,
}

impl Core {
    pub(super) fn submit(
        &mut self,
        conn: ConnId,
        app: String,
        args: Vec<String>,
        wanted: &Wanted,
        inputs: Vec<InputFile>,
    ) {
        let choice = match self.choose(conn, &app, wanted) {
            Ok(choice) => choice,
            Err(reason) => return self.fail_client(conn, reason),
        };
        if inputs.iter().try_fold(0u64, |total, file| total.checked_add(file.len)).is_none() {
            return self.fail_client(conn, "the input is longer than 2^64 bytes".into());
        }
        let cutter = Cutter::new(choice.cut, &inputs, choice.nodes.len());
        let mut save = Vec::new();
        let job = self.identities.job(&mut save);
        self.save(save);
        let Some(job) = job else { return self.fail_client(conn, STORE_IS_SLOW.into()) };
        let (files, share) = (inputs.len(), cutter.share());
        let start = JobStart { job, app, args, nodes: choice.nodes, inputs, share };
        if encode(&start).len() > MAX_START {
            return self.fail_client(conn, "the list of input files and arguments is too long".into());
        }
        self.log(format!(
            "job {}: {} on {} nodes, {files} files",
            job.0,
            one_line(&start.app),
            start.nodes.len()
        ));
        for &node in &start.nodes {
            if let Some(live) = self.members.get_mut(node) {
                live.job = Some(job);
                let conn = live.conn;
                self.tell_node(conn, ToNode::JobStart(start.clone()));
            }
        }
        let part = |&node: &NodeId| Part { node, accepted: false, report: None };
        let new = Job {
            client: conn,
            parts: start.nodes.iter().map(part).collect(),
            cutter,
            phase: Phase::Starting,
            deadline: Some(self.now + self.config.patience),
            reading: true,
            first_input: None,
            last_input: None,
            output_in_flight: 0,
        };
        self.jobs.0.insert(job, new);
    }

    /// Chooses idle nodes that have the application.
    fn choose(&self, conn: ConnId, app: &str, wanted: &Wanted) -> Result<Choice, Reason> {
        if self.leaving.is_some() {
            return Err("the cluster is shutting down".into());
        }
        if let Some(reason) = self.store_objection() {
            return Err(reason);
        }
        if self.jobs.0.values().any(|job| job.client == conn) {
            return Err("a job of this connection is under way".into());
        }
        let all = &self.members.0;
        if all.is_empty() {
            return Err("no node has joined".into());
        }
        let manifest = |node: NodeId| {
            let live = self.members.get(node)?;
            live.join.apps.iter().find(|manifest| manifest.name == app)
        };
        let able: Vec<NodeId> = all.keys().copied().filter(|&node| manifest(node).is_some()).collect();
        let Some(first) = able.first().and_then(|&node| manifest(node)) else {
            let known: BTreeSet<&str> = all
                .values()
                .flat_map(|live| &live.join.apps)
                .map(|manifest| manifest.name.as_str())
                .collect();
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            return Err(format!(
                "unknown application {}; the nodes have: {}",
                one_line(app),
                one_line(&known)
            ));
        };
        let (able, wanted) = match wanted {
            Wanted::Any(0) => (able.clone(), able.len()),
            Wanted::Any(count) => (able, *count),
            Wanted::Named(names) => (self.named(names, app, &able)?, names.len()),
        };
        if able.len() < wanted {
            return Err(format!("{wanted} nodes wanted, but only {} with {app} have joined", able.len()));
        }
        let idle = |node: &NodeId| self.members.get(*node).is_some_and(|live| live.job.is_none());
        let nodes: Vec<NodeId> = able.iter().copied().filter(idle).take(wanted).collect();
        if nodes.len() < wanted {
            let busy: Vec<String> = self.jobs.0.keys().map(|job| format!("job {}", job.0)).collect();
            return Err(format!(
                "{wanted} nodes wanted, but {} are idle: {} runs",
                nodes.len(),
                busy.join(", ")
            ));
        }
        if let Some(&other) = nodes.iter().find(|&&node| manifest(node).map(|m| &m.cut) != Some(&first.cut)) {
            return Err(format!("{} has another build of {app} than the others", self.members.label(other)));
        }
        Ok(Choice { nodes, cut: first.cut.clone() })
    }

    /// The nodes of these names, all of which must be among those `able` to run the application.
    fn named(&self, names: &[String], app: &str, able: &[NodeId]) -> Result<Vec<NodeId>, Reason> {
        let mut nodes = Vec::new();
        for name in names {
            let is = |node: &&NodeId| self.members.get(**node).is_some_and(|live| live.member.name == *name);
            let node = *able
                .iter()
                .find(is)
                .ok_or_else(|| format!("no node {} with {app} has joined", one_line(name)))?;
            if nodes.contains(&node) {
                return Err(format!("node {} is named twice", one_line(name)));
            }
            nodes.push(node);
        }
        Ok(nodes)
    }

    pub(super) fn job_accepted(&mut self, node: NodeId, id: JobId) {
        let Some(job) = self.jobs.0.get_mut(&id) else { return };
        let Some(rank) = job.rank(node) else { return };
        if let Some(part) = job.parts.get_mut(rank) {
            part.accepted = true;
        }
        if job.phase == Phase::Starting && job.parts.iter().all(|part| part.accepted) {
            job.phase = Phase::Streaming;
            job.deadline = Some(self.now + self.config.patience);
            let (client, nodes) = (job.client, job.nodes());
            self.tell_client(client, ToClient::Accepted { job: id, nodes });
            self.end_input_if_finished(id);
        }
    }

    /// Cuts input of a client and passes it on.
    pub(super) fn job_input(&mut self, conn: ConnId, bytes: &[u8]) {
        let found = self.jobs.0.iter_mut().find(|(_, job)| job.client == conn);
        let Some((&id, job)) = found.filter(|(_, job)| job.phase == Phase::Streaming) else {
            return self.fail_client(conn, "input that no job waits for".into());
        };
        if bytes.len() > MAX_INPUT {
            return self.fail_client(conn, format!("more than {MAX_INPUT} bytes of input in one message"));
        }
        job.deadline = Some(self.now + self.config.patience);
        job.first_input.get_or_insert(self.now);
        let (members, actions, parts) = (&mut self.members, &mut self.actions, &job.parts);
        let cut = job.cutter.push(bytes, |piece| {
            let node = parts.get(piece.rank).map(|part| part.node);
            let Some(live) = node.and_then(|node| members.get_mut(node)) else { return };
            let message = Message::ToNode(ToNode::JobInput {
                job: id,
                file: piece.file,
                offset: piece.offset,
                bytes: piece.bytes.to_vec(),
                end_of_split: piece.end_of_split,
            });
            live.queued += message.bulk();
            actions.push(Action::Send { conn: live.conn, message });
        });
        if let Err(excess) = cut {
            return self.fail_client(conn, excess.to_string());
        }
        self.end_input_if_finished(id);
        self.regulate(id);
    }

    fn end_input_if_finished(&mut self, id: JobId) {
        let Some(job) = self.jobs.0.get_mut(&id) else { return };
        if !job.cutter.finished() {
            return;
        }
        job.phase = Phase::Running;
        job.deadline = None;
        job.last_input = Some(self.now);
        let loads: Vec<String> = job.cutter.loads().iter().map(u64::to_string).collect();
        for node in job.nodes() {
            if let Some(conn) = self.members.get(node).map(|live| live.conn) {
                self.tell_node(conn, ToNode::JobInputEnd { job: id });
            }
        }
        self.log(format!("job {}: all input is out, bytes by rank: {}", id.0, loads.join(" ")));
    }

    /// Input for a node has been handed to the network.
    pub(super) fn input_sent(&mut self, node: NodeId, bytes: usize) {
        let Some(live) = self.members.get_mut(node) else { return };
        live.queued = live.queued.saturating_sub(bytes);
        if let Some(id) = live.job {
            if let Some(job) = self.jobs.0.get_mut(&id)
                && bytes > 0
                && job.phase == Phase::Running
                && job.parts.iter().all(|part| part.report.is_none())
            {
                job.last_input = Some(self.now);
            }
            self.regulate(id);
        }
    }

    /// Stops or resumes taking input, by the longest queue of the job's nodes.
    fn regulate(&mut self, id: JobId) {
        let Some(job) = self.jobs.0.get_mut(&id) else { return };
        let queued = |part: &Part| self.members.get(part.node).map_or(0, |live| live.queued);
        let longest = job.parts.iter().map(queued).max().unwrap_or(0);
        let reading = if job.reading {
            longest <= self.config.input_window || job.phase == Phase::Running
        } else {
            longest <= self.config.input_window / 2
        };
        // The client may be silent for as long as it is not heard.
        job.deadline = (job.phase == Phase::Streaming && reading).then_some(self.now + self.config.patience);
        if reading != job.reading {
            job.reading = reading;
            self.actions.push(Action::Reading { conn: job.client, on: reading });
        }
    }

    pub(super) fn job_progress(&mut self, node: NodeId, id: JobId, phase: String, done: u64, total: u64) {
        if let Some(client) =
            self.jobs.0.get(&id).filter(|job| job.rank(node).is_some()).map(|job| job.client)
        {
            self.tell_client(client, ToClient::Progress { node, phase, done, total });
        }
    }

    pub(super) fn job_output(&mut self, node: NodeId, id: JobId, bytes: Vec<u8>) {
        let Some(job) = self.jobs.0.get_mut(&id) else { return };
        let (client, rank) = (job.client, job.rank(node));
        job.output_in_flight += bytes.len();
        let complaint = match rank {
            Some(0) if job.phase != Phase::Running => "gave output before it had all input",
            Some(0) if bytes.len() > MAX_OUTPUT => "sent too long a piece of output",
            Some(0) if job.output_in_flight > ToManager::OUTPUT_WINDOW => {
                "sent output without waiting for its window"
            }
            Some(0) => return self.tell_client(client, ToClient::Output { bytes }),
            _ => "gave output, which only rank 0 has",
        };
        let reason = format!("{} {complaint}", self.members.label(node));
        self.fail_job(id, reason);
    }

    /// Output has been handed to the network on its way to the client.
    pub(super) fn output_sent(&mut self, conn: ConnId, bytes: usize) {
        let found = self.jobs.0.iter_mut().find(|(_, job)| job.client == conn);
        let Some((&id, job)) = found.filter(|_| bytes > 0) else { return };
        job.output_in_flight = job.output_in_flight.saturating_sub(bytes);
        let first = job.parts.first().and_then(|part| self.members.get(part.node));
        if let Some(conn) = first.map(|live| live.conn) {
            self.tell_node(conn, ToNode::JobOutputAck { job: id, bytes: bytes as u64 });
        }
    }

    pub(super) fn job_done(&mut self, node: NodeId, id: JobId, report: JobReport) {
        let Some(job) = self.jobs.0.get_mut(&id) else { return };
        let Some(rank) = job.rank(node) else { return };
        if job.phase != Phase::Running {
            let reason = format!("{} was done before it had all input", self.members.label(node));
            return self.fail_job(id, reason);
        }
        if let Some(part) = job.parts.get_mut(rank) {
            part.report = Some(report);
        }
        if job.parts.iter().any(|part| part.report.is_none()) {
            return;
        }
        let Some(job) = self.release(id) else { return };
        let first = job.first_input.or(job.last_input).unwrap_or(self.now);
        let last = job.last_input.unwrap_or(self.now);
        let micros = |from: Instant, to: Instant| u64::try_from((to - from).as_micros()).unwrap_or(u64::MAX);
        let (run_us, stream_us) = (micros(last, self.now), micros(first, last));
        let reports =
            job.parts.into_iter().map(|part| (part.node, part.report.unwrap_or_default())).collect();
        self.tell_client(job.client, ToClient::Done { reports, run_us, stream_us });
        self.log(format!("job {}: done, {stream_us} us for the input, {run_us} us of work", id.0));
    }

    pub(super) fn job_failed_by(&mut self, node: NodeId, id: JobId, reason: &str) {
        if self.jobs.0.get(&id).is_some_and(|job| job.rank(node).is_some()) {
            let reason = format!("{}: {}", self.members.label(node), one_line(reason));
            self.fail_job(id, reason);
        }
    }

    /// Ends a job: its nodes are told, and its client.
    pub(super) fn fail_job(&mut self, id: JobId, reason: Reason) {
        let Some(client) = self.cancel(id, &reason) else { return };
        self.tell_client(client, ToClient::Failed { reason });
        self.close(client);
    }

    pub(super) fn fail_all_jobs(&mut self, reason: &str) {
        let ids: Vec<JobId> = self.jobs.0.keys().copied().collect();
        for id in ids {
            self.fail_job(id, reason.into());
        }
    }

    /// Gives up what a client that cannot be told has submitted.
    pub(super) fn cancel_jobs_of(&mut self, conn: ConnId, reason: &str) {
        let ids: Vec<JobId> =
            self.jobs.0.iter().filter(|(_, job)| job.client == conn).map(|(&id, _)| id).collect();
        for id in ids {
            let _ = self.cancel(id, reason);
        }
    }

    /// Has the nodes of a job that live give it up; gives its client.
    fn cancel(&mut self, id: JobId, reason: &str) -> Option<ConnId> {
        let job = self.release(id)?;
        self.log(format!("job {}: failed: {reason}", id.0));
        for part in &job.parts {
            if let Some(conn) = self.members.get(part.node).map(|live| live.conn) {
                self.tell_node(conn, ToNode::JobCancel { job: id, reason: reason.into() });
            }
        }
        Some(job.client)
    }

    /// Takes a job off the list and its nodes out of it.
    fn release(&mut self, id: JobId) -> Option<Job> {
        let job = self.jobs.0.remove(&id)?;
        for part in &job.parts {
            if let Some(live) = self.members.get_mut(part.node)
                && live.job == Some(id)
            {
                live.job = None;
            }
        }
        if !job.reading {
            self.actions.push(Action::Reading { conn: job.client, on: true });
        }
        Some(job)
    }

    pub(super) fn expire_jobs(&mut self) {
        let late: Vec<JobId> = self
            .jobs
            .0
            .iter()
            .filter(|(_, job)| job.deadline.is_some_and(|deadline| deadline <= self.now))
            .map(|(&id, _)| id)
            .collect();
        for id in late {
            let Some(job) = self.jobs.0.get(&id) else { continue };
            let silent = job.parts.iter().filter(|part| !part.accepted);
            let silent: Vec<String> = silent.map(|part| self.members.label(part.node)).collect();
            let reason = if silent.is_empty() {
                "the client sent no input".into()
            } else {
                format!("did not accept the job in time: {}", silent.join(", "))
            };
            self.fail_job(id, reason);
        }
    }
}
