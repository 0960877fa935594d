//! Submissions: the choice of a job's nodes among the idle ones, and the start of the job.

use super::super::cut::Cutter;
use super::super::members::STORE_IS_SLOW;
use super::super::rate::Rate;
use super::super::records::{JobRecord, Record, Spec, Stage, Wanted};
use super::super::{ConnId, Core, Message};
use super::output::OutputFlow;
use super::{Job, Part, Phase};
use platform::Instant;
use proto::{CutRule, Dataset, InputFile, JobId, JobStart, NodeId, Reason, ToNode, encode, printable};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The maximum length of a job's description without its nodes, in bytes.
const MAX_START: usize = 256 << 10;

/// A client's submission of a job.
#[derive(Debug)]
pub(in super::super) struct Submission {
    /// The client; `None` after a restart of the manager, until the client comes back.
    pub(in super::super) conn: Option<ConnId>,
    pub(in super::super) spec: Spec,
    /// The time at which the submission arrived, or at which the manager began to wait for its client.
    pub(in super::super) since: Instant,
    /// The first and the last number of the job, if it began before and starts again.
    pub(in super::super) former: Option<(JobId, JobId)>,
    /// The nodes on which the job began before.
    pub(in super::super) nodes: Vec<NodeId>,
}

/// The nodes of a new job by rank, and the cutter of its input.
struct Choice {
    nodes: Vec<NodeId>,
    cut: CutRule,
}

/// The reason why a job cannot start.
enum Refusal {
    /// The job cannot start, and to wait does not help.
    Final(Reason),
    /// The job cannot start before nodes have ended their part of another job.
    Ending(Reason),
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self::Final(reason)
    }
}

impl Core {
    pub(in super::super) fn submit(&mut self, submission: Submission) {
        match self.objection(&submission) {
            Some(reason) => self.fail_submission(&submission, reason),
            None => self.start_or_wait(submission),
        }
    }

    /// Returns the fault of a submission that is invalid whatever the nodes do.
    fn objection(&self, submission: &Submission) -> Option<Reason> {
        let Submission { conn, spec: Spec { app, args, inputs, datasets, keep, .. }, .. } = submission;
        let waits = self.jobs.waiting.iter().any(|other| other.conn == *conn);
        if waits || conn.is_some_and(|conn| self.jobs.clients.contains_key(&conn)) {
            return Some("this connection already has a job".into());
        }
        if inputs.iter().try_fold(0u64, |total, file| total.checked_add(file.len)).is_none() {
            return Some("the input is longer than 2^64 bytes".into());
        }
        if encode(&(app, args, inputs)).len() > MAX_START {
            return Some("the list of input files and arguments is too long".into());
        }
        self.dataset_objection(datasets, keep.as_ref())
    }

    /// Refuses a submission, or reports the failure of a job that was to start again.
    pub(super) fn fail_submission(&mut self, submission: &Submission, reason: Reason) {
        if let Some((_, job)) = submission.former {
            self.log(format!("job {}: failed: {reason}", job.0));
            self.save(vec![Record::JobGone(job)]);
        }
        if let Some(conn) = submission.conn {
            self.fail_client(conn, reason);
        }
    }

    /// Starts the submissions whose nodes have ended their part of another job, and refuses those that have
    /// waited for too long.
    pub(in super::super) fn start_waiting(&mut self) {
        for submission in std::mem::take(&mut self.jobs.waiting) {
            self.start_or_wait(submission);
        }
    }

    pub(super) fn start_or_wait(&mut self, submission: Submission) {
        if submission.conn.is_none() {
            if submission.since + self.config.reply_timeout > self.now {
                return self.jobs.waiting.push(submission);
            }
            return self.fail_submission(&submission, "its client has not come back".into());
        }
        match self.choose(&submission) {
            Ok(choice) => self.start(submission, choice),
            Err(Refusal::Final(reason)) => self.fail_submission(&submission, reason),
            Err(Refusal::Ending(reason)) if submission.since + self.config.ending <= self.now => {
                let waited = self.config.ending.as_secs();
                self.fail_submission(&submission, format!("{reason}, and has been for {waited} s"));
            }
            Err(Refusal::Ending(_)) => self.jobs.waiting.push(submission),
        }
    }

    fn start(&mut self, submission: Submission, choice: Choice) {
        // A dataset may have been dropped while the submission waited for nodes.
        let datasets = match self.find_datasets(&submission.spec.datasets) {
            Ok(datasets) => datasets,
            Err(reason) => return self.fail_submission(&submission, reason),
        };
        let spec = submission.spec.clone();
        let cutter = Cutter::new(choice.cut, &spec.inputs, choice.nodes.len());
        let mut save = Vec::new();
        let Some(job) = self.identities.job(&mut save) else {
            self.save(save);
            return self.fail_submission(&submission, STORE_IS_SLOW.into());
        };
        let first = submission.former.map_or(job, |(first, _)| first);
        let incarnation = |&node: &NodeId| Some((node, self.members.get(node)?.member.incarnation));
        let nodes = choice.nodes.iter().filter_map(incarnation).collect();
        let record = JobRecord { job, first, spec: spec.clone(), nodes, stage: Stage::Loading };
        save.push(Record::Job(Arc::new(record)));
        save.extend(submission.former.map(|(_, last)| Record::JobGone(last)));
        self.save(save);
        let (mut inputs, mut share) = (spec.inputs.clone(), cutter.share());
        let files = inputs.len();
        for dataset in &datasets {
            share = share.saturating_add(dataset.len().div_ceil(choice.nodes.len() as u64));
            let name = format!("{}{}", Dataset::SCHEME, dataset.name);
            inputs.push(InputFile { name, len: dataset.len() });
        }
        let (nodes, keep) = (choice.nodes, spec.keep.is_some());
        let (app, args) = (spec.app.clone(), spec.args.clone());
        let start = JobStart { job, app, args, nodes, inputs, datasets, share, keep };
        self.log(format!("job {}: {} on {} nodes, {files} files", job.0, start.app, start.nodes.len()));
        let parts = self.tell_start(start);
        let new = Job {
            client: submission.conn,
            first,
            spec,
            parts,
            cutter: Some(cutter),
            phase: Phase::Starting,
            began: self.now,
            phase_began: self.now,
            waiting: self.now,
            reading: true,
            first_input: None,
            last_input: None,
            output: OutputFlow::default(),
            progress: Rate::new(5000, Duration::from_secs(5)),
        };
        self.jobs.running.insert(job, new);
        if let Some(conn) = submission.conn {
            self.jobs.clients.insert(conn, job);
        }
    }

    /// Tells the nodes of a job to start their parts, and returns the parts.
    fn tell_start(&mut self, start: JobStart) -> Vec<Part> {
        let (job, nodes) = (start.job, start.nodes.clone());
        let message = Message::to_nodes(&ToNode::JobStart(start));
        for &node in &nodes {
            if let Some(live) = self.members.get_mut(node) {
                live.job = Some(job);
                if let Some(conn) = live.conn {
                    self.commit(conn, message.clone());
                }
            }
        }
        let incarnation = |node| self.members.get(node).map(|live| live.member.incarnation);
        let member = |node| Some((node, incarnation(node)?));
        nodes.into_iter().filter_map(member).map(|member| Part::new(member, self.now)).collect()
    }

    /// Chooses idle nodes that have the application.
    fn choose(&self, submission: &Submission) -> Result<Choice, Refusal> {
        let app = &submission.spec.app;
        if self.leaving.is_some() {
            return Err(Refusal::Final("the cluster is shutting down".into()));
        }
        if let Some(reason) = self.store_objection() {
            return Err(Refusal::Final(reason));
        }
        let all = &self.members.0;
        if all.is_empty() {
            return Err(Refusal::Final("no node has joined".into()));
        }
        let cut = |node: NodeId| {
            let live = self.members.get(node)?;
            live.join.apps.iter().find(|manifest| manifest.name == *app).map(|manifest| &manifest.cut)
        };
        let able: Vec<NodeId> = all.keys().copied().filter(|&node| cut(node).is_some()).collect();
        let Some(first) = able.first().and_then(|&node| cut(node)) else {
            return Err(Refusal::Final(self.unknown(app)));
        };
        let able: Vec<NodeId> = able.into_iter().filter(|&node| !self.orders.contains(node)).collect();
        if able.is_empty() {
            return Err(Refusal::Final(format!("all nodes with {app} are about to leave")));
        }
        let (out, able): (Vec<NodeId>, Vec<NodeId>) =
            able.into_iter().partition(|&node| self.withdrawn(node).is_some());
        let out: Vec<Reason> = out.into_iter().filter_map(|node| self.withdrawn(node)).collect();
        if able.is_empty() {
            return Err(Refusal::Final(printable(&out.join(", "))));
        }
        if let Wanted::Named(names) = &submission.spec.wanted
            && let Some(reason) =
                names.iter().find_map(|name| self.withdrawn(self.members.named(name)?.member.node))
        {
            return Err(Refusal::Final(printable(&reason)));
        }
        let (able, wanted) = match &submission.spec.wanted {
            Wanted::Any(0) => (able.clone(), able.len()),
            Wanted::Any(count) => (able, usize::from(*count)),
            Wanted::Named(names) => (self.named(names, app, &able)?, names.len()),
        };
        if able.len() < wanted {
            let out = if out.is_empty() { String::new() } else { format!(": {}", out.join(", ")) };
            let has = if out.is_empty() { "have joined" } else { "take jobs" };
            let reason = format!("{wanted} nodes wanted, but only {} with {app} {has}{out}", able.len());
            return Err(Refusal::Final(printable(&reason)));
        }
        let nodes = self.idle(&able, wanted)?;
        if let Some(&other) = nodes.iter().find(|&&node| cut(node) != Some(first)) {
            let label = self.members.label(other);
            return Err(Refusal::Final(format!("{label} has another build of {app} than the others")));
        }
        Ok(Choice { nodes, cut: first.clone() })
    }

    /// Returns the first `wanted` idle nodes of those that are able.
    fn idle(&self, able: &[NodeId], wanted: usize) -> Result<Vec<NodeId>, Refusal> {
        let job = |node: &NodeId| self.members.get(*node).and_then(|live| live.job);
        let silent =
            |node: &NodeId| self.members.get(*node).is_some_and(|live| live.conn.is_none() || live.asked);
        let idle = |node: &NodeId| job(node).is_none() && !silent(node);
        let nodes: Vec<NodeId> = able.iter().copied().filter(idle).take(wanted).collect();
        if nodes.len() == wanted {
            return Ok(nodes);
        }
        let busy: BTreeSet<JobId> = able.iter().filter_map(job).collect();
        let ends = |id: &JobId| self.jobs.ending.get(id);
        let say = |id: &JobId| match ends(id) {
            Some(ending) => {
                format!("job {} is ending on {}", id.0, self.members.labels(ending.nodes.iter().copied()))
            }
            None => format!("job {} runs", id.0),
        };
        let silent: Vec<NodeId> = able.iter().copied().filter(silent).collect();
        let unheard = Some(silent).filter(|silent| !silent.is_empty());
        let unheard = unheard.map(|nodes| format!("{} is silent", self.members.labels(nodes.into_iter())));
        let busy = busy.iter().map(say).chain(unheard).collect::<Vec<_>>().join(", ");
        let idle = nodes.len();
        let reason = printable(&format!("{wanted} nodes wanted, but {idle} are idle: {busy}"));
        let runs = able.iter().filter_map(job).filter(|id| ends(id).is_none()).count();
        Err(if able.len() - runs < wanted { Refusal::Final(reason) } else { Refusal::Ending(reason) })
    }

    fn unknown(&self, app: &str) -> Reason {
        let apps = self.members.0.values().flat_map(|live| &live.join.apps);
        let known: BTreeSet<&str> = apps.map(|manifest| manifest.name.as_str()).collect();
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        format!("unknown application {}; the nodes have: {}", printable(app), printable(&known))
    }

    /// Returns the nodes with the given names. All must be among the nodes `able` to run the application.
    fn named(&self, names: &[String], app: &str, able: &[NodeId]) -> Result<Vec<NodeId>, Reason> {
        let by_name = |&node: &NodeId| Some((self.members.get(node)?.member.name.as_str(), node));
        let able: std::collections::BTreeMap<&str, NodeId> = able.iter().filter_map(by_name).collect();
        let mut nodes = Vec::new();
        let mut seen = BTreeSet::new();
        for name in names {
            let node = *able
                .get(name.as_str())
                .ok_or_else(|| format!("no node {} with {app} has joined", printable(name)))?;
            if !seen.insert(node) {
                return Err(format!("node {} is named twice", printable(name)));
            }
            nodes.push(node);
        }
        Ok(nodes)
    }
}
