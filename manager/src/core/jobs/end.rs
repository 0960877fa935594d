//! The end of jobs, which are done, failed or cancelled, and of their nodes' parts.

use super::super::records::KeptReport;
use super::super::{Action, ConnId, Core};
use super::{Feed, Job, Phase, queue::Submission};
use platform::Instant;
use proto::{JobEnd, JobId, JobReport, NodeId, Reason, Refusal, ToClient, ToNode, printable};
use std::collections::BTreeSet;
use std::time::Duration;

/// A job that was cancelled or has failed, and whose nodes have not all ended their part.
#[derive(Debug)]
pub(super) struct Ending {
    /// The number that the job had first.
    pub(super) first: JobId,
    pub(super) app: String,
    /// The nodes that have not reported yet that nothing of the job is left.
    pub(super) nodes: BTreeSet<NodeId>,
    /// The time when the job began.
    pub(super) began: Instant,
    /// The time at which the job's nodes were told to end it.
    pub(super) since: Instant,
    /// True if the operator has been told that it takes long.
    told: bool,
}

impl Ending {
    /// Returns the end of a job, whose first number and application are given.
    pub(super) fn new(
        (first, app): (JobId, String),
        nodes: BTreeSet<NodeId>,
        began: Instant,
        since: Instant,
    ) -> Self {
        Self { first, app, nodes, began, since, told: false }
    }

    /// Returns the time at which the operator is told, if the nodes do nothing.
    pub(super) fn due(&self, timeout: Duration) -> Option<Instant> {
        (!self.told).then(|| self.since + timeout)
    }
}

impl Core {
    pub(in super::super) fn job_done(&mut self, node: NodeId, id: JobId, report: JobReport) {
        self.part_is_over(node, id);
        let Some(job) = self.jobs.running.get(&id).filter(|job| job.rank(node).is_some()) else {
            return self.forget_part(node, id);
        };
        let (client, phase) = (job.client, job.phase);
        let complaint = match report.check() {
            _ if phase != Phase::Running => "was done before it had all input".into(),
            Err(reason) => format!("has done its part: {reason}"),
            Ok(()) => {
                if let Some(part) = self.jobs.running.get_mut(&id).and_then(|job| job.part_mut(node)) {
                    part.report = Some(KeptReport::new(&report));
                }
                if let Some(client) = client {
                    self.tell_client(client, ToClient::Report { node, report });
                }
                return self.end_if_all_are_done(id);
            }
        };
        let reason = format!("{} {complaint}", self.members.label(node));
        self.fail_job(id, reason);
    }

    pub(super) fn end_if_all_are_done(&mut self, id: JobId) {
        let all = |job: &Job| job.parts.iter().all(|part| part.over);
        if !self.jobs.running.get(&id).is_some_and(all) || !self.is_stored(id) {
            return;
        }
        if let Some(job) = self.release(id) {
            self.finish_job(id, job);
            self.schedule();
        }
    }

    pub(in super::super) fn job_failed_by(&mut self, node: NodeId, id: JobId, reason: &str) {
        self.part_is_over(node, id);
        if self.jobs.running.get(&id).is_some_and(|job| job.rank(node).is_some()) {
            let reason = format!("{}: {}", self.members.label(node), printable(reason));
            self.fail_job(id, reason);
        }
        self.forget_part(node, id);
    }

    /// Handles a node's report that nothing is left of its part of a job that it was told to end.
    pub(in super::super) fn job_over(&mut self, node: NodeId, id: JobId) {
        self.job_failed_by(node, id, "ended its part early");
    }

    /// Handles the end of a node's part of a job, also by the end of the node.
    pub(in super::super) fn part_is_over(&mut self, node: NodeId, id: JobId) {
        if let Some(part) = self.jobs.running.get_mut(&id).and_then(|job| job.part_mut(node)) {
            part.over = true;
        }
        let Some(ending) = self.jobs.ending.get_mut(&id) else { return };
        if !ending.nodes.remove(&node) {
            return;
        }
        let (last, first, began) = (ending.nodes.is_empty(), ending.first, ending.began);
        self.parts_are_over(first, BTreeSet::from([node]), began);
        if let Some(live) = self.members.get_mut(node) {
            live.job = None;
        }
        if last {
            self.jobs.ending.remove(&id);
            self.log(format!("job {}: its nodes have ended their parts", id.0));
            self.schedule();
        }
    }

    /// Fails a job, and tells its nodes and its client.
    pub(in super::super) fn fail_job(&mut self, id: JobId, reason: Reason) {
        self.end_job(id, JobEnd::Failed { reason });
    }

    /// Ends a job that is not done, and tells its nodes and its client.
    pub(super) fn end_job(&mut self, id: JobId, end: JobEnd) {
        let reason = end.reason();
        let Some(client) = self.cancel(id, end) else { return };
        if let Some(client) = client {
            self.tell_client(client, ToClient::Failed { reason });
            self.close(client);
        }
        self.schedule();
    }

    /// Fails all jobs, including those that wait.
    pub(in super::super) fn fail_all_jobs(&mut self, reason: &str) {
        for submission in std::mem::take(&mut self.jobs.waiting) {
            self.fail_submission(&submission, reason.into());
        }
        let ids: Vec<JobId> = self.jobs.running.keys().copied().collect();
        for id in ids {
            self.fail_job(id, reason.into());
        }
    }

    /// Ends a job at the request of a client, which names it by one of its numbers.
    pub(in super::super) fn cancel_for(&mut self, conn: ConnId, id: JobId) {
        let by = self.peer(conn);
        let running = self.jobs.running.iter().find(|(number, job)| **number == id || job.first == id);
        let running = running.map(|(&number, _)| number);
        if let Some(number) = running {
            self.end_job(number, JobEnd::Cancelled { by });
        } else if let Some(submission) = self.take_waiting(id) {
            self.end_submission(&submission, JobEnd::Cancelled { by });
            self.schedule();
        } else {
            let ending = self.jobs.ending.iter().find(|(number, job)| **number == id || job.first == id);
            let reason = match (ending, self.history.get(id)) {
                (Some((_, ending)), _) => {
                    let nodes = self.members.labels(ending.nodes.iter().copied());
                    format!("job {} has ended, but not yet on {nodes}", id.0)
                }
                (None, Some(ended)) => format!("job {} has ended: {}", id.0, ended.end.word()),
                (None, None) => {
                    let reason = format!("there is no job {}", id.0);
                    return self.refuse_client(conn, Refusal::NotFound, reason);
                }
            };
            return self.fail_client(conn, reason);
        }
        if self.connections.contains_key(&conn) {
            self.commit_to_client(conn, ToClient::Cancelled { job: id });
        }
    }

    /// Cancels the submissions of a client that cannot be told.
    pub(in super::super) fn cancel_jobs_of(&mut self, conn: ConnId, reason: &str) {
        let (gone, stay) = std::mem::take(&mut self.jobs.waiting)
            .into_iter()
            .partition(|submission| submission.conn == Some(conn));
        self.jobs.waiting = stay;
        let gone: Vec<Submission> = gone;
        for mut submission in gone {
            submission.conn = None;
            self.fail_submission(&submission, reason.into());
        }
        self.forget_finished_of(conn);
        self.forget_arrival(conn);
        self.jobs.fetches.remove(&conn);
        if let Some(&id) = self.jobs.clients.get(&conn) {
            let _ = self.cancel(id, JobEnd::Failed { reason: reason.into() });
        }
        self.schedule();
    }

    /// Ends a job that does not start again, and returns its client.
    fn cancel(&mut self, id: JobId, end: JobEnd) -> Option<Option<ConnId>> {
        let reason = end.reason();
        let job = self.end_parts(id, &reason)?;
        self.log(format!("job {}: failed: {reason}", id.0));
        self.record_job_end(&job, end);
        self.remove_data(job.first);
        self.job_gone(id);
        Some(job.client)
    }

    /// Tells the nodes of a job to end it, and returns the job.
    pub(super) fn end_parts(&mut self, id: JobId, reason: &str) -> Option<Job> {
        let job = self.release(id)?;
        let mut nodes = BTreeSet::new();
        for part in job.parts.iter().filter(|part| !part.over) {
            if let Some(live) = self.members.get_mut(part.node) {
                live.job = Some(id);
                let conn = live.conn;
                nodes.insert(part.node);
                if let Some(conn) = conn {
                    // A node that does not know the job yet must learn of its start first.
                    self.commit_to_node(conn, ToNode::JobCancel { job: id, reason: reason.into() });
                }
            }
        }
        for part in job.parts.iter().filter(|part| part.over) {
            self.forget_part(part.node, id);
        }
        if job.spec.keep.is_some() {
            let all: Vec<NodeId> = job.parts.iter().map(|part| part.node).collect();
            self.free_kept(id, &all);
        }
        if !nodes.is_empty() {
            let ending = Ending::new((job.first, job.spec.app.clone()), nodes, job.began, self.now);
            self.jobs.ending.insert(id, ending);
        }
        Some(job)
    }

    /// Removes a job from the list and frees its nodes.
    fn release(&mut self, id: JobId) -> Option<Job> {
        let mut job = self.jobs.running.remove(&id)?;
        self.end_log(&job);
        // The input that has not been sent is of no use any more, and may be long.
        job.parts.iter_mut().for_each(|part| part.feed = Feed::new(self.now));
        if let Some(client) = job.client {
            self.jobs.clients.remove(&client);
        }
        for part in &job.parts {
            if let Some(live) = self.members.get_mut(part.node) {
                live.job = None;
            }
        }
        if !job.reading {
            self.actions.extend(job.client.map(|conn| Action::Reading { conn, on: true }));
        }
        Some(job)
    }

    /// Tells the operator of nodes that do not end their part of a job.
    pub(super) fn expire_ending(&mut self) {
        let (now, timeout) = (self.now, self.config.reply_timeout);
        let mut lines = Vec::new();
        for (id, ending) in &mut self.jobs.ending {
            if ending.due(timeout).is_some_and(|due| due <= now) {
                ending.told = true;
                let nodes = self.members.labels(ending.nodes.iter().copied());
                lines.push(format!("job {}: has not ended for {} s on {nodes}", id.0, timeout.as_secs()));
            }
        }
        lines.into_iter().for_each(|line| self.log(line));
    }
}
