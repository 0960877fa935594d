//! Jobs: their phases and deadlines.

mod choose;
mod end;
mod input;
mod output;

pub(super) use choose::{Submission, Wanted};

use super::cut::Cutter;
use super::rate::Rate;
use super::{Config, ConnId, Core, Message};
use end::Ending;
use input::Feed;
use platform::Instant;
use proto::{JobId, JobPhase, JobStatus, NodeId, ToClient, ToNode};
use std::collections::BTreeMap;
use std::time::Duration;

/// The jobs that run, wait or end.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    running: BTreeMap<JobId, Job>,
    /// The job of each client that has one in `running`.
    clients: BTreeMap<ConnId, JobId>,
    /// The jobs that were cancelled or have failed, and whose nodes have not all ended their part.
    ending: BTreeMap<JobId, Ending>,
    /// The submissions that wait until such nodes are idle, in the order of their arrival.
    waiting: Vec<Submission>,
}

impl Jobs {
    pub(super) fn next_deadline(&self, config: &Config) -> Option<Instant> {
        let running = self.running.values().filter_map(|job| job.due(config.reply_timeout)).map(|(at, _)| at);
        let ending = self.ending.values().filter_map(|ending| ending.due(config.reply_timeout));
        let waiting = self.waiting.iter().map(|submission| submission.since + config.ending);
        running.chain(ending).chain(waiting).min()
    }

    /// Moves the starts of all waits for nodes and clients by `later`.
    pub(super) fn forgive(&mut self, later: impl Fn(&mut Instant)) {
        for job in self.running.values_mut() {
            later(&mut job.waiting);
            job.parts.iter_mut().for_each(|part| later(&mut part.feed.stalled));
        }
        self.ending.values_mut().for_each(|ending| later(&mut ending.since));
        self.waiting.iter_mut().for_each(|submission| later(&mut submission.since));
    }

    /// Returns the job that reads a dataset.
    pub(super) fn that_reads(&self, name: &str) -> Option<JobId> {
        let reads = |(_, job): &(&JobId, &Job)| job.reads.iter().any(|read| read == name);
        self.running.iter().find(reads).map(|(&id, _)| id)
    }

    /// Returns the job, for people, whose output becomes the dataset of this name.
    pub(super) fn that_keeps(&self, name: &str) -> Option<String> {
        let keeps = |keep: &Option<String>| keep.as_deref() == Some(name);
        let running = self.running.iter().find(|(_, job)| keeps(&job.keep));
        let waits = || self.waiting.iter().any(|submission| keeps(&submission.keep));
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
    client: ConnId,
    app: String,
    /// The nodes, by rank.
    parts: Vec<Part>,
    cutter: Cutter,
    /// The names of the datasets that the job reads.
    reads: Vec<String>,
    /// The name of the dataset that the output becomes.
    keep: Option<String>,
    phase: Phase,
    /// The time at which the job's nodes were told of it, and the time at which its present phase began.
    began: Instant,
    phase_began: Instant,
    /// The time limit of the job.
    limit: Option<Duration>,
    /// The start of the present wait: for the nodes' acceptance, or for more input from the client.
    waiting: Instant,
    /// True if the client's messages are received.
    reading: bool,
    /// The times when the first byte of input came and when the last was handed to the network.
    first_input: Option<Instant>,
    last_input: Option<Instant>,
    /// The number of bytes of output on their way to the client.
    output_in_flight: usize,
    /// The allowance of progress messages for all nodes of the job.
    progress: Rate,
}

#[derive(Debug)]
struct Part {
    node: NodeId,
    accepted: bool,
    /// The node has reported that nothing of its part is left.
    over: bool,
    feed: Feed,
    /// The lengths of the pieces of output that the node keeps.
    kept: Vec<u64>,
    /// The allowance of progress messages for the node.
    progress: Rate,
}

impl Part {
    fn new(node: NodeId, now: Instant) -> Self {
        let progress = Rate::new(32, Duration::from_secs(2));
        Self { node, accepted: false, over: false, feed: Feed::new(now), kept: Vec::new(), progress }
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
    /// The node with this rank, which accepts no input.
    Feed(usize),
    /// Nobody: the job has run for longer than its time limit, which is given here.
    Limit(Duration),
}

impl Job {
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
        let limit = self.limit.map(|limit| (self.began + limit, Overdue::Limit(limit)));
        let waiting = match self.phase {
            Phase::Starting => Some((self.waiting + timeout, Overdue::Nodes)),
            Phase::Loading => self.load_due(timeout),
            Phase::Running => None,
        };
        limit.into_iter().chain(waiting).min_by_key(|(at, _)| *at)
    }
}

impl Core {
    pub(super) fn job_accepted(&mut self, node: NodeId, id: JobId) {
        let now = self.now;
        let Some(job) = self.jobs.running.get_mut(&id) else { return };
        let Some(part) = job.part_mut(node) else { return };
        part.accepted = true;
        if job.phase == Phase::Starting && job.parts.iter().all(|part| part.accepted) {
            job.enter(Phase::Loading, now);
            let (client, nodes) = (job.client, job.nodes());
            self.tell_client(client, ToClient::Accepted { job: id, nodes });
            self.end_input_if_all_sent(id);
        }
    }

    /// Sends all live nodes of a job the same message. The message keeps its order with the job's input.
    fn tell_parts(&mut self, id: JobId, message: &ToNode) {
        let Some(job) = self.jobs.running.get(&id) else { return };
        let conns = job.parts.iter().filter_map(|part| self.members.get(part.node)).map(|live| live.conn);
        let send = |conn| super::Action::Send { conn, message: Message::ToNode(message.clone()) };
        self.actions.extend(conns.map(send));
    }

    /// Returns the jobs for people, including those that are ending.
    pub(super) fn job_statuses(&self) -> Vec<JobStatus> {
        let running = self.jobs.running.iter().map(|(&job, running)| JobStatus {
            job,
            app: running.app.clone(),
            nodes: running.nodes(),
            phase: match running.phase {
                Phase::Starting => JobPhase::Starting,
                Phase::Loading => JobPhase::Loading,
                Phase::Running => JobPhase::Running,
            },
            age_ms: self.millis_since(running.began),
            phase_ms: self.millis_since(running.phase_began),
        });
        let ending = self.jobs.ending.iter().map(|(&job, ending)| JobStatus {
            job,
            app: ending.app.clone(),
            nodes: ending.nodes.iter().copied().collect(),
            phase: JobPhase::Ending,
            age_ms: self.millis_since(ending.began),
            phase_ms: self.millis_since(ending.since),
        });
        let mut all: Vec<JobStatus> = running.chain(ending).collect();
        all.sort_by_key(|status| status.job);
        all
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
                Overdue::Client => "the client sent no input".into(),
                Overdue::Feed(rank) => {
                    let slow = job.parts.iter().skip(rank).take(1).map(|part| part.node);
                    format!("{} accepted no input for {} s", self.members.labels(slow), timeout.as_secs())
                }
                Overdue::Limit(limit) => {
                    format!("the job has taken longer than its limit of {} s", limit.as_secs_f64())
                }
            };
            self.fail_job(id, reason);
        }
        self.expire_ending();
        self.start_waiting();
    }
}
