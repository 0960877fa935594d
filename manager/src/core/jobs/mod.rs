//! Jobs: their phases and deadlines.

mod arrival;
mod attach;
mod eligible;
mod end;
mod input;
mod list;
mod log;
mod output;
mod policy;
mod queue;
mod reasons;
mod restart;
mod spooled;
mod start;

use super::cut::Cutter;
use super::rate::Rate;
use super::records::{JobRecord, KeptReport, Spec, Stage, Ticket};
use super::spool::SpoolFiles;
use super::{Config, ConnId, Core, Message};
use arrival::Arrival;
use attach::Finished;
use end::Ending;
use input::Feed;
use log::Logs;
use output::OutputFlow;
use platform::Instant;
use proto::{Incarnation, JobEnd, JobId, NodeId, ToClient, ToNode};
use queue::Submission;
use spooled::{Feeding, Fetch};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The jobs that run, wait or end.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    running: BTreeMap<JobId, Job>,
    /// The job of each client that has one in `running`.
    clients: BTreeMap<ConnId, JobId>,
    /// The jobs that were cancelled or have failed, and whose nodes have not all ended their part.
    ending: BTreeMap<JobId, Ending>,
    /// The queue, in the order of the jobs' turns.
    waiting: Vec<Submission>,
    /// The time of the last decision about the queue.
    planned: Instant,
    /// The jobs that are done, and whose clients may not know it.
    finished: BTreeMap<JobId, Finished>,
    /// The files of the spool.
    files: SpoolFiles,
    /// The submissions whose input goes to the spool, by the connections that send it.
    arrivals: BTreeMap<ConnId, Arrival>,
    /// The clients that wait for bytes from the spool.
    fetches: BTreeMap<ConnId, Fetch>,
    /// The logs whose lines may still come.
    logs: Logs,
    /// The time at which the next files of a job that has ended are removed. A tick that comes later does no
    /// harm.
    expiry: Option<Instant>,
}

impl Jobs {
    pub(super) fn next_deadline(&self, config: &Config) -> Option<Instant> {
        let running = self.running.values().filter_map(|job| job.due(config.reply_timeout)).map(|(at, _)| at);
        let ending = self.ending.values().filter_map(|ending| ending.due(config.reply_timeout));
        let waiting = self.waiting.iter();
        let waiting = waiting.filter_map(|submission| submission.due(config.reply_timeout, config.ending));
        let finished = self.finished.values().map(|finished| finished.since + config.reply_timeout);
        let arrivals = self.next_late_arrival(config.reply_timeout);
        let logs = self.logs.next_deadline();
        running.chain(ending).chain(waiting).chain(finished).chain(arrivals).chain(logs).min()
    }

    /// Moves the starts of all waits for nodes and clients by `later`.
    pub(super) fn forgive(&mut self, later: impl Fn(&mut Instant)) {
        for job in self.running.values_mut() {
            later(&mut job.waiting);
            job.parts.iter_mut().for_each(|part| later(&mut part.feed.stalled));
        }
        self.ending.values_mut().for_each(|ending| later(&mut ending.since));
        self.waiting.iter_mut().for_each(|submission| later(&mut submission.since));
        self.finished.values_mut().for_each(|finished| later(&mut finished.since));
        self.arrivals.values_mut().for_each(|arrival| later(&mut arrival.since));
    }

    /// Returns the number of jobs in the queue.
    pub(super) fn queued(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the job that reads a dataset.
    pub(super) fn that_reads(&self, name: &str) -> Option<JobId> {
        let reads = |(_, job): &(&JobId, &Job)| job.spec.datasets.iter().any(|read| read == name);
        self.running.iter().find(reads).map(|(&id, _)| id)
    }

    /// Returns the job, for people, whose output becomes the dataset of this name.
    pub(super) fn that_keeps(&self, name: &str) -> Option<String> {
        let keeps = |keep: &Option<String>| keep.as_deref() == Some(name);
        let running = self.running.iter().find(|(_, job)| keeps(&job.spec.keep));
        let waits = || self.waiting.iter().any(|submission| keeps(&submission.spec.keep));
        match running {
            Some((id, _)) => Some(format!("job {}", id.0)),
            None => waits().then(|| "a job that waits for nodes".into()),
        }
    }

    fn of_client(&mut self, conn: ConnId) -> Option<(JobId, &mut Job)> {
        let id = *self.clients.get(&conn)?;
        Some((id, self.running.get_mut(&id)?))
    }
}

#[derive(Debug)]
struct Job {
    /// The client; `None` after a restart of the manager, until the client comes back.
    client: Option<ConnId>,
    /// The number that the job had first. It differs if the job has started again.
    first: JobId,
    spec: Spec,
    ticket: Ticket,
    /// The nodes, by rank.
    parts: Vec<Part>,
    /// The cutter of the input; `None` if a former process of the manager has cut it.
    cutter: Option<Cutter>,
    phase: Phase,
    /// The time at which the job's nodes were told of it, and the time at which its present phase began.
    began: Instant,
    phase_began: Instant,
    /// The start of the present wait: for the nodes' acceptance, for more input from the client, or for the
    /// client itself.
    waiting: Instant,
    /// True if the client's messages are received.
    reading: bool,
    /// The times when the first byte of input came and when the last was handed to the network.
    first_input: Option<Instant>,
    last_input: Option<Instant>,
    output: OutputFlow,
    /// The input from the spool, if it comes from there.
    feeding: Option<Feeding>,
    /// The state of the output in the spool, if it goes there.
    stored: Stored,
    /// The allowance of progress messages for all nodes of the job.
    progress: Rate,
}

/// The state of a job's output in the spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    /// More may come.
    Open,
    /// The nodes are done, and the spool was ordered to complete the file.
    Ordered,
    /// The file is whole.
    Whole,
}

#[derive(Debug)]
struct Part {
    node: NodeId,
    incarnation: Incarnation,
    /// The name of the node.
    name: String,
    accepted: bool,
    /// The node has reported that nothing of its part is left.
    over: bool,
    feed: Feed,
    /// The node's report, once it has done its part.
    report: Option<KeptReport>,
    /// The allowance of progress messages for the node.
    progress: Rate,
}

impl Part {
    fn new((node, incarnation): (NodeId, Incarnation), name: String, now: Instant) -> Self {
        let progress = Rate::new(32, Duration::from_secs(2));
        let (accepted, over, feed, report) = (false, false, Feed::new(now), None);
        Self { node, incarnation, name, accepted, over, feed, report, progress }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The nodes have been asked to accept the job.
    Starting,
    /// Input comes from the client, or waits for nodes.
    Loading,
    /// The nodes have all input.
    Running,
}

/// The party that has delayed a job for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overdue {
    /// The nodes that have not accepted.
    Nodes,
    /// The client, which sends no input.
    Client,
    /// The client, which has not come back after a restart of the manager.
    NoClient,
    /// The node with this rank, which accepts no input.
    Feed(usize),
    /// Nobody: the job has run for longer than its time limit, which is given here.
    Limit(Duration),
}

impl Job {
    /// Returns a job whose nodes are told of it now, of a client, if it has one, and with its first number.
    fn new(
        (client, first): (Option<ConnId>, JobId),
        (spec, ticket): (Spec, Ticket),
        parts: Vec<Part>,
        now: Instant,
    ) -> Self {
        Self {
            client,
            first,
            spec,
            ticket,
            parts,
            cutter: None,
            phase: Phase::Starting,
            began: now,
            phase_began: now,
            waiting: now,
            reading: true,
            first_input: None,
            last_input: None,
            output: OutputFlow::default(),
            feeding: None,
            stored: Stored::Open,
            progress: Rate::new(5000, Duration::from_secs(5)),
        }
    }

    fn rank(&self, node: NodeId) -> Option<usize> {
        self.parts.iter().position(|part| part.node == node)
    }

    fn part_mut(&mut self, node: NodeId) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.node == node)
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.parts.iter().map(|part| part.node).collect()
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        (self.phase, self.phase_began, self.waiting) = (phase, now, now);
    }

    /// Returns the time at which the job fails if the party that it waits for does nothing, and that party.
    /// Nodes that compute are bounded by their leases and by the job's limit.
    fn due(&self, timeout: Duration) -> Option<(Instant, Overdue)> {
        let limit = self.spec.limit.map(|limit| (self.began + limit, Overdue::Limit(limit)));
        let waiting = match self.phase {
            Phase::Starting => Some((self.waiting + timeout, Overdue::Nodes)),
            Phase::Loading => self.load_due(timeout),
            Phase::Running if self.client.is_none() && !self.ticket.terms.detach => {
                Some((self.waiting + timeout, Overdue::NoClient))
            }
            Phase::Running => None,
        };
        limit.into_iter().chain(waiting).min_by_key(|(at, _)| *at)
    }
}

impl Core {
    /// Returns the user who has submitted a job, which has one of its numbers, or has ended.
    pub(super) fn owner(&self, id: JobId) -> Option<&str> {
        let is = |number: JobId, first: JobId| number == id || first == id;
        let jobs = &self.jobs;
        let running = jobs.running.iter().find(|(number, job)| is(**number, job.first));
        let waiting = || jobs.waiting.iter().find(|submission| submission.is(id));
        let finished = || jobs.finished.iter().find(|(number, done)| is(**number, done.record.first));
        let ticket = running
            .map(|(_, job)| &job.ticket)
            .or_else(|| waiting().map(|submission| &submission.ticket))
            .or_else(|| finished().map(|(_, done)| &done.record.ticket))
            .or_else(|| self.history.get(id).map(|ended| &ended.ticket));
        ticket.map(|ticket| ticket.owner.as_str())
    }

    pub(super) fn job_accepted(&mut self, node: NodeId, id: JobId) {
        let now = self.now;
        let Some(job) = self.jobs.running.get_mut(&id) else { return };
        let Some(part) = job.part_mut(node) else { return };
        part.accepted = true;
        if job.phase == Phase::Starting && job.parts.iter().all(|part| part.accepted) {
            job.enter(Phase::Loading, now);
            let (client, nodes) = (job.client, job.nodes());
            if let Some(client) = client {
                self.commit_to_client(client, ToClient::Accepted { job: id, nodes });
            }
            self.end_input_if_all_sent(id);
            self.read_input(id);
        }
    }

    /// Sends all connected nodes of a job the same message, once all records are saved.
    fn tell_parts(&mut self, id: JobId, message: &ToNode) {
        let Some(job) = self.jobs.running.get(&id) else { return };
        let live = |part: &Part| self.members.get(part.node)?.conn;
        let conns: Vec<ConnId> = job.parts.iter().filter_map(live).collect();
        for conn in conns {
            self.commit(conn, Message::ToNode(message.clone()));
        }
    }

    /// Saves the progress of a job.
    fn save_job(&mut self, id: JobId, stage: Stage) {
        let Some(job) = self.jobs.running.get(&id) else { return };
        let nodes = job.parts.iter().map(|part| (part.node, part.incarnation)).collect();
        let (spec, ticket, qos) = (job.spec.clone(), job.ticket.clone(), job.ticket.qos);
        let record = JobRecord { job: id, first: job.first, spec, nodes, stage, ticket, qos };
        self.save(vec![super::Record::Job(Arc::new(record))]);
    }

    pub(super) fn expire_jobs(&mut self) {
        let (now, timeout) = (self.now, self.config.reply_timeout);
        let late = self.jobs.running.iter().filter_map(|(&id, job)| Some((id, job.due(timeout)?)));
        let late: Vec<(JobId, Overdue)> =
            late.filter(|(_, (at, _))| *at <= now).map(|(id, (_, overdue))| (id, overdue)).collect();
        for (id, overdue) in late {
            let Some(job) = self.jobs.running.get(&id) else { continue };
            let reason = match overdue {
                Overdue::Nodes => {
                    let silent = job.parts.iter().filter(|part| !part.accepted).map(|part| part.node);
                    format!("did not accept the job in time: {}", self.members.labels(silent))
                }
                Overdue::Client if job.feeding.is_some() => "the spool returned no input in time".into(),
                Overdue::Client => "the client sent no input".into(),
                Overdue::NoClient => "its client has not come back".into(),
                Overdue::Feed(rank) => {
                    let slow = job.parts.iter().skip(rank).take(1).map(|part| part.node);
                    format!("{} accepted no input for {} s", self.members.labels(slow), timeout.as_secs())
                }
                Overdue::Limit(limit) => {
                    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
                    self.end_job(id, JobEnd::TimedOut { limit_ms });
                    continue;
                }
            };
            self.fail_job(id, reason);
        }
        self.expire_ending();
        self.expire_finished();
        self.expire_arrivals();
        self.expire_logs();
        if self.jobs.expiry.is_some_and(|at| at <= now) {
            self.expire_spool();
        }
        self.expire_queue();
    }
}
