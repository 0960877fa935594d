//! The jobs as clients see them: the queue, the jobs that run or end, and the history.

use super::super::history::bounded;
use super::super::records::{EndedRecord, KeptReport};
use super::super::{ConnId, Core};
use super::queue::{self, Submission};
use super::{Job, Phase};
use proto::{
    JobDetails, JobId, JobInfo, JobPhase, JobQos, JobReport, JobState, JobStatus, Reason, Refusal, Terms,
    ToClient, ToNode, encode, printable,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// The length of a page of a list, in bytes.
const PAGE: usize = 256 << 10;

impl Core {
    /// Returns the jobs for people, including those that are ending.
    pub(in super::super) fn job_statuses(&self) -> Vec<JobStatus> {
        let running = self.jobs.running.iter().map(|(&job, running)| JobStatus {
            job,
            app: running.spec.app.clone(),
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

    /// Sends a page of the list of jobs.
    pub(in super::super) fn tell_jobs(&mut self, conn: ConnId, after: JobId, ended: bool) {
        let mut all: BTreeMap<JobId, JobInfo> = BTreeMap::new();
        if ended {
            let mut bytes = 0;
            // The part of the history that a page has room for, and one more job.
            let page = self.history.after(after).map(|ended| self.info_of_ended(ended)).take_while(|info| {
                let has_room = bytes <= PAGE;
                bytes += encode(info).len();
                has_room
            });
            all.extend(page.map(|info| (info.job, info)));
        }
        all.extend(self.present().into_iter().filter(|info| info.job > after).map(|info| (info.job, info)));
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        let mut left = all.into_values().peekable();
        // The names of the nodes of one job may be longer than a page.
        while let Some(info) = left.next_if(|info| bytes == 0 || bytes + encode(info).len() <= PAGE) {
            bytes += encode(&info).len();
            jobs.push(info);
        }
        let more = left.peek().is_some();
        self.tell_client(conn, ToClient::JobList { jobs, more });
    }

    /// Sends all that is known of a job.
    pub(in super::super) fn show_job(&mut self, conn: ConnId, job: JobId) {
        match self.details(job) {
            Some(details) => {
                let tells = self.version(conn) >= ToNode::LIMITS_JOBS && !details.qos.is_plain();
                let (qos, details) = (details.qos, Box::new(details));
                let shown = match qos {
                    qos if tells => ToClient::JobShownWith { details, qos },
                    _ => ToClient::JobShown(details),
                };
                self.commit_to_client(conn, shown);
            }
            None => self.refuse_client(conn, Refusal::NotFound, format!("there is no job {}", job.0)),
        }
    }

    /// Waits until a job has ended.
    pub(in super::super) fn wait_job(&mut self, conn: ConnId, job: JobId, timeout_ms: u64) {
        if self.history.get(job).is_some() || self.details(job).is_none() {
            return self.show_job(conn, job);
        }
        let until = self.now + Duration::from_millis(timeout_ms);
        if self.history.wait(conn, job, until) {
            self.fail_client(conn, "this connection already waits for a job".into());
        }
    }

    /// Returns all that is known of a job.
    pub(in super::super) fn details(&self, job: JobId) -> Option<JobDetails> {
        if let Some(ended) = self.history.get(job) {
            let (info, reports) = (self.info_of_ended(ended), decoded(&ended.reports));
            return Some(JobDetails { info, reports, qos: ended.qos });
        }
        let info = self.present().into_iter().find(|info| info.job == job)?;
        let running = self.jobs.running.values().find(|running| running.first == job);
        let waiting =
            || self.jobs.waiting.iter().find(|waiting| waiting.number == job).map(|job| &job.ticket);
        let qos =
            running.map(|running| &running.ticket).or_else(waiting).map_or_else(JobQos::default, |t| t.qos);
        let parts = running.into_iter().flat_map(|running| &running.parts);
        let reports = parts.filter_map(|part| Some((part.name.clone(), part.report.clone()?)));
        Some(JobDetails { info, reports: decoded(&bounded(reports)), qos })
    }

    /// Returns the first `most` jobs of the queue, each with its owner.
    pub(in super::super) fn queue_head(&self, most: usize) -> Vec<(JobInfo, String)> {
        let queued = self.queued(most).into_iter();
        let line =
            |(job, reason): (&Submission, Reason)| (info_of_queued(job, reason), job.ticket.owner.clone());
        queued.map(line).collect()
    }

    /// Returns the jobs that wait, run or end.
    fn present(&self) -> Vec<JobInfo> {
        let queued = self.queued(usize::MAX);
        let waiting = queued.into_iter().map(|(submission, reason)| info_of_queued(submission, reason));
        let running = self.jobs.running.values().map(|job| self.info_of_running(job));
        let ending = self.jobs.ending.values();
        let ending = ending.filter(|ending| !self.jobs.waiting.iter().any(|job| job.number == ending.first));
        let ending = ending.map(|ending| {
            let nodes = self.members.labels(ending.nodes.iter().copied());
            let reason = format!("not yet ended on {nodes}");
            let names =
                ending.nodes.iter().filter_map(|&node| Some(self.members.get(node)?.member.name.clone()));
            let mut info = blank(ending.first, &ending.app, &Terms::default(), JobState::Ending { reason });
            if let Some(ended) = self.history.get(ending.first) {
                info = JobInfo { state: info.state, ..self.info_of_ended(ended) };
            }
            JobInfo { nodes: names.collect(), ..info }
        });
        waiting.chain(running).chain(ending).collect()
    }

    fn info_of_running(&self, job: &Job) -> JobInfo {
        let state = match job.phase {
            Phase::Starting => JobState::Starting,
            Phase::Loading => JobState::Loading,
            Phase::Running => JobState::Running,
        };
        JobInfo {
            by: job.ticket.by.clone(),
            nodes: job.parts.iter().map(|part| part.name.clone()).collect(),
            wanted: queue::wanted(&job.spec),
            limit_ms: queue::limit_ms(&job.spec),
            submitted_ms: job.ticket.submitted_ms,
            started_ms: Some(job.ticket.started_ms),
            requeues: job.ticket.requeues,
            output_bytes: job.spools().then_some(job.output.taken),
            log_bytes: self.log_len(job.first),
            ..blank(job.first, &job.spec.app, &job.ticket.terms, state)
        }
    }

    fn info_of_ended(&self, ended: &EndedRecord) -> JobInfo {
        let EndedRecord { job, app, wanted, limit_ms, ticket, nodes, end, ended_ms, .. } = ended;
        JobInfo {
            by: ticket.by.clone(),
            nodes: nodes.clone(),
            wanted: *wanted,
            limit_ms: *limit_ms,
            submitted_ms: ticket.submitted_ms,
            started_ms: Some(ticket.started_ms).filter(|started| *started > 0),
            ended_ms: Some(*ended_ms),
            requeues: ticket.requeues,
            output_bytes: ended.output,
            log_bytes: self.log_len(*job),
            expired: ended.expired,
            ..blank(*job, app, &ticket.terms, JobState::Ended(end.clone()))
        }
    }
}

fn decoded(reports: &[(String, KeptReport)]) -> Vec<(String, JobReport)> {
    reports.iter().filter_map(|(name, report)| Some((name.clone(), report.report()?))).collect()
}

/// Returns a job without most of its description.
fn blank(job: JobId, app: &str, terms: &Terms, state: JobState) -> JobInfo {
    JobInfo {
        job,
        app: app.into(),
        by: String::new(),
        state,
        nodes: Vec::new(),
        wanted: 0,
        priority: terms.priority,
        submitted_ms: 0,
        started_ms: None,
        ended_ms: None,
        limit_ms: None,
        requeues: 0,
        detached: terms.detach,
        output_bytes: None,
        log_bytes: None,
        expired: false,
    }
}

fn info_of_queued(submission: &Submission, reason: Reason) -> JobInfo {
    let Submission { spec, ticket, number, .. } = submission;
    JobInfo {
        by: ticket.by.clone(),
        wanted: queue::wanted(spec),
        limit_ms: queue::limit_ms(spec),
        submitted_ms: ticket.submitted_ms,
        requeues: ticket.requeues,
        ..blank(*number, &spec.app, &ticket.terms, JobState::Queued { reason: printable(&reason) })
    }
}
