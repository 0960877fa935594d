//! The queue: submissions, the jobs that wait, and the reasons for which they do.

use super::super::members::STORE_IS_SLOW;
use super::super::records::{EndedRecord, JobRecord, Record, Spec, Stage, Ticket, Wanted};
use super::super::{ConnId, Core};
use super::arrival::input_len;
use super::eligible::{Fit, Misfit};
use super::policy::{self, Use, Verdict, Waiting};
use super::reasons::After;
use platform::Instant;
use proto::{JobEnd, JobId, JobQos, NodeId, Reason, Terms, ToClient, encoded_len};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// The maximum length of a job's description without its nodes, in bytes.
const MAX_START: usize = 256 << 10;

/// The maximum length of the descriptions of all jobs in the queue, in bytes.
const MAX_WAITING: usize = 64 << 20;

/// The number of jobs, from the head of the queue, that may start or keep nodes.
pub(super) const DEPTH: usize = 64;

/// The maximum number of excluded nodes of a job.
const MAX_EXCLUDED: usize = 256;

/// The least interval at which the client of a waiting job is told a new reason.
const TELL: Duration = Duration::from_millis(500);

/// The maximum number of times that a job goes back to the queue: a job that kills its nodes must end.
pub(super) const MAX_REQUEUES: u8 = 5;

/// A job that waits to start, or to start again.
#[derive(Debug)]
pub(in super::super) struct Submission {
    /// The client; `None` for a job without one, and after a restart of the manager until the client comes
    /// back.
    pub(super) conn: Option<ConnId>,
    pub(super) spec: Spec,
    pub(super) ticket: Ticket,
    /// The time at which the submission arrived, or at which the manager began to wait for its client.
    pub(super) since: Instant,
    /// The number that the job keeps for its clients.
    pub(super) number: JobId,
    /// The last number under which the job began, if it starts again.
    pub(super) last: Option<JobId>,
    /// The nodes on which the job began before.
    pub(super) nodes: Vec<NodeId>,
    /// The reason that its client was told last, and the time.
    pub(super) told: Option<(Reason, Instant)>,
    /// The length of the [description](description_len), in bytes.
    pub(super) len: usize,
}

impl Submission {
    /// Returns the key of the order in which jobs have their turns.
    fn turn(&self) -> (std::cmp::Reverse<i16>, JobId) {
        (std::cmp::Reverse(self.ticket.terms.priority), self.number)
    }

    /// Returns true if `job` is one of the job's numbers.
    pub(super) fn is(&self, job: JobId) -> bool {
        self.number == job || self.last == Some(job)
    }

    /// Returns true if the job waits until it can start, for however long.
    fn stays(&self) -> bool {
        let terms = &self.ticket.terms;
        terms.wait || terms.detach || terms.requeue
    }

    /// Returns true if the store and the history know the job.
    pub(super) fn is_recorded(&self) -> bool {
        self.stays() || self.last.is_some()
    }

    /// Returns true while the job's client is away.
    pub(super) fn is_abandoned(&self) -> bool {
        self.conn.is_none() && !self.ticket.terms.detach
    }
}

impl Core {
    /// Handles a submission of a client.
    pub(in super::super) fn submit(&mut self, conn: ConnId, spec: Spec, terms: Terms, wish: &JobQos) {
        let qos = match self.config.rules.qos.decide(wish) {
            Ok(qos) => qos,
            Err(reason) => return self.fail_client(conn, reason),
        };
        let owner = self.asker(conn).map_or_else(|_| String::new(), |(name, _)| name.into());
        let (by, submitted_ms) = (self.who(conn), self.unix_ms());
        let ticket = Ticket { terms, owner, by, submitted_ms, qos, ..Ticket::default() };
        let total = spec.inputs.iter().fold(0u64, |total, file| total.saturating_add(file.len));
        let too_long = || self.input_objection(total).filter(|_| ticket.terms.detach);
        if let Some(reason) = self.objection(conn, &spec, &ticket).or_else(too_long) {
            return self.fail_client(conn, reason);
        }
        let mut save = Vec::new();
        let number = self.identities.job(&mut save);
        self.save(save);
        let Some(number) = number else { return self.fail_client(conn, STORE_IS_SLOW.into()) };
        let submission = Submission {
            conn: (!ticket.terms.detach).then_some(conn),
            len: description_len(&spec),
            spec,
            ticket,
            since: self.now,
            number,
            last: None,
            nodes: Vec::new(),
            told: None,
        };
        if submission.ticket.terms.detach && input_len(&submission) > 0 {
            self.expect_input(conn, submission);
        } else {
            self.enqueue(conn, submission);
        }
    }

    /// Puts a job into the queue. `conn` has submitted it.
    pub(super) fn enqueue(&mut self, conn: ConnId, submission: Submission) {
        let (number, detached) = (submission.number, submission.ticket.terms.detach);
        if submission.stays() {
            self.save_queued(&submission);
        }
        self.jobs.waiting.push(submission);
        if detached {
            self.commit_to_client(conn, ToClient::Submitted { job: number });
        }
        self.schedule();
    }

    /// Records a job of the queue that has not begun.
    pub(super) fn save_queued(&mut self, submission: &Submission) {
        let Submission { spec, ticket, number, .. } = submission;
        let (spec, ticket, stage) = (spec.clone(), ticket.clone(), Stage::Queued);
        let (job, first, qos) = (*number, *number, ticket.qos);
        let record = JobRecord { job, first, spec, nodes: Vec::new(), stage, ticket, qos };
        self.save(vec![Record::Job(Arc::new(record))]);
    }

    /// Returns the reason why a submission is refused.
    pub(super) fn objection(&self, conn: ConnId, spec: &Spec, ticket: &Ticket) -> Option<Reason> {
        let Spec { inputs, datasets, keep, .. } = spec;
        let terms = &ticket.terms;
        let waits = self.jobs.waiting.iter().any(|other| other.conn == Some(conn));
        if waits || self.jobs.clients.contains_key(&conn) || self.jobs.arrivals.contains_key(&conn) {
            return Some("this connection already has a job".into());
        }
        if inputs.iter().try_fold(0u64, |total, file| total.checked_add(file.len)).is_none() {
            return Some("the input is longer than 2^64 bytes".into());
        }
        let len = description_len(spec);
        if len > MAX_START {
            return Some("the list of input files and arguments is too long".into());
        }
        if terms.exclude.len() > MAX_EXCLUDED || encoded_len(terms) > MAX_START {
            return Some(format!("a job may exclude {MAX_EXCLUDED} nodes"));
        }
        let waiting = self.jobs.waiting.iter().fold(len, |sum, other| sum + other.len);
        if self.jobs.waiting.len() >= self.config.queue || waiting > MAX_WAITING {
            return Some(format!("the queue is full: {} jobs wait", self.jobs.waiting.len()));
        }
        if let Some(reason) = self.dataset_objection(datasets, keep.as_ref()) {
            return Some(reason);
        }
        if self.leaving.is_some() {
            return Some("the cluster is shutting down".into());
        }
        if let Some(reason) = self.store_objection() {
            return Some(reason);
        }
        if let Err(After::Never(reason)) = self.after(terms.after) {
            return Some(reason);
        }
        match self.fit(spec, ticket) {
            Err(Misfit::Never(reason)) => Some(reason),
            Err(Misfit::Now(reason)) if !terms.wait => Some(reason),
            _ => None,
        }
    }

    /// Starts the jobs of the queue whose turn it is, and refuses those that do not wait any longer.
    pub(in super::super) fn schedule(&mut self) {
        if self.jobs.waiting.is_empty() || self.stopping {
            return;
        }
        self.jobs.planned = self.now;
        self.drop_late();
        self.jobs.waiting.sort_by_key(Submission::turn);
        let plan = self.plan();
        let mut starts: BTreeMap<JobId, Vec<NodeId>> = plan
            .iter()
            .filter_map(|(&job, (_, verdict))| match verdict {
                Verdict::Start(nodes) => Some((job, nodes.clone())),
                Verdict::Busy | Verdict::Turn(_) => None,
            })
            .collect();
        let mut stay = Vec::new();
        for submission in std::mem::take(&mut self.jobs.waiting) {
            match (starts.remove(&submission.number), plan.get(&submission.number)) {
                (Some(nodes), Some((fit, _))) => {
                    stay.extend(self.start(submission, nodes, fit.cut.clone()));
                }
                _ => stay.push(submission),
            }
        }
        // Jobs that failed to start were told so. A client may have gone meanwhile.
        stay.append(&mut self.jobs.waiting);
        self.jobs.waiting = stay;
        self.tell_reasons(&plan);
    }

    /// Returns the decision about each job of the queue that nothing but nodes holds up.
    fn plan(&self) -> BTreeMap<JobId, (Fit, Verdict)> {
        let mut fits = BTreeMap::new();
        let mut queue = Vec::new();
        for submission in &self.jobs.waiting {
            if queue.len() == DEPTH {
                break;
            }
            if self.obstacle(submission).is_some() {
                continue;
            }
            if let Ok(fit) = self.fit(&submission.spec, &submission.ticket) {
                let (job, wanted, able) = (submission.number, fit.wanted, fit.able.clone());
                queue.push(Waiting { job, wanted, able, time: submission.spec.limit });
                fits.insert(job, fit);
            }
        }
        let busy = self.members.0.iter().filter_map(|(&node, live)| {
            let of = match self.jobs.running.get(&live.job?) {
                Some(job) => Use::Runs(job.spec.limit.map(|limit| job.began + limit)),
                None => Use::Ends,
            };
            Some((node, of))
        });
        let verdicts = policy::decide(self.now, &busy.collect(), &queue);
        verdicts.into_iter().filter_map(|(job, verdict)| Some((job, (fits.remove(&job)?, verdict)))).collect()
    }

    /// Returns true if a job needs no node of a job that runs.
    fn is_soon_free(&self, fit: &Fit, verdict: &Verdict) -> bool {
        let passes = |node: &&NodeId| {
            let live = self.members.get(**node);
            let runs = live.and_then(|live| live.job).is_some_and(|job| self.jobs.running.contains_key(&job));
            !runs && self.hold(**node).is_none_or(|hold| hold.passes)
        };
        matches!(verdict, Verdict::Busy) && fit.nodes.iter().filter(passes).count() >= fit.wanted
    }

    /// Tells the clients of waiting jobs why these wait, and refuses the jobs that do not wait.
    fn tell_reasons(&mut self, plan: &BTreeMap<JobId, (Fit, Verdict)>) {
        let now = self.now;
        let (mut told, mut refused) = (Vec::new(), Vec::new());
        // The queue stays whole while it is asked: a job may wait for another one in it.
        for submission in &self.jobs.waiting {
            let (number, decision) = (submission.number, plan.get(&submission.number));
            if submission.stays() {
                // A client of a job that was not to wait does not know the message.
                let due = submission.told.as_ref().is_none_or(|(_, at)| *at + TELL <= now);
                if let Some(conn) = submission.conn.filter(|_| due && submission.ticket.terms.wait) {
                    told.push((number, conn, self.reason(submission, decision)));
                }
                continue;
            }
            // A job that starts again has a moment for it, whatever it waits for.
            let soon = submission.last.is_some()
                || decision.is_some_and(|(fit, verdict)| self.is_soon_free(fit, verdict));
            if submission.is_abandoned() || soon && submission.since + self.config.ending > now {
                continue;
            }
            let mut reason = self.reason(submission, decision);
            if soon {
                let _ = write!(reason, ", and has been for {} s", self.config.ending.as_secs());
            }
            refused.push((number, reason));
        }
        for (job, conn, reason) in told {
            let known = |submission: &&mut Submission| submission.number == job;
            let Some(submission) = self.jobs.waiting.iter_mut().find(known) else { continue };
            if submission.told.as_ref().is_none_or(|(told, _)| *told != reason) {
                submission.told = Some((reason.clone(), now));
                self.commit_to_client(conn, ToClient::Queued { job, reason });
            }
        }
        for (job, reason) in refused {
            if let Some(submission) = self.take_waiting(job) {
                self.fail_submission(&submission, reason);
            }
        }
    }

    /// Ends the jobs of the queue whose clients do not come back, and those that were to run after one that
    /// has failed.
    fn drop_late(&mut self) {
        // The queue stays whole while it is asked: a job may wait for another one in it.
        let late = |submission: &Submission| {
            if submission.is_abandoned() && submission.since + self.config.reply_timeout <= self.now {
                return Some(String::from("its client has not come back"));
            }
            match self.after(submission.ticket.terms.after) {
                Err(After::Never(reason)) => Some(reason),
                Ok(()) | Err(After::Wait(_)) => None,
            }
        };
        let waiting = self.jobs.waiting.iter();
        let late: Vec<(JobId, Reason)> =
            waiting.filter_map(|submission| Some((submission.number, late(submission)?))).collect();
        for (job, reason) in late {
            if let Some(submission) = self.take_waiting(job) {
                self.fail_submission(&submission, reason);
            }
        }
    }

    /// Handles the passage of time.
    pub(super) fn expire_queue(&mut self) {
        if self.jobs.planned + TELL <= self.now || self.jobs.waiting.iter().any(|job| self.queue_due(job)) {
            self.schedule();
        }
    }

    fn queue_due(&self, submission: &Submission) -> bool {
        submission.due(self.config.reply_timeout, self.config.ending).is_some_and(|due| due <= self.now)
    }

    /// Ends a job of the queue, and tells its client.
    pub(super) fn end_submission(&mut self, submission: &Submission, end: JobEnd) {
        let reason = end.reason();
        if submission.is_recorded() {
            self.log(format!("job {}: {}: {reason}", submission.number.0, end.word()));
            self.job_gone(submission.last.unwrap_or(submission.number));
            self.remove_data(submission.number);
            let Submission { spec, ticket, number, .. } = submission;
            self.record_end(ended(*number, spec, ticket.clone(), end, self.unix_ms()));
        }
        if let Some(conn) = submission.conn {
            self.fail_client(conn, reason);
        }
    }

    /// Removes and returns the job of the queue with this number.
    pub(super) fn take_waiting(&mut self, job: JobId) -> Option<Submission> {
        let at = self.jobs.waiting.iter().position(|submission| submission.is(job))?;
        Some(self.jobs.waiting.remove(at))
    }

    /// Returns the first `most` jobs of the queue with the reasons why they wait, in the order of their
    /// turns.
    pub(super) fn queued(&self, most: usize) -> Vec<(&Submission, Reason)> {
        let plan = self.plan();
        let waiting = self.jobs.waiting.iter().take(most);
        waiting
            .map(|submission| (submission, self.reason(submission, plan.get(&submission.number))))
            .collect()
    }
}

impl Submission {
    /// Returns the time at which the job is refused, or told to have lost its client.
    pub(super) fn due(&self, client: Duration, ending: Duration) -> Option<Instant> {
        if self.is_abandoned() {
            return Some(self.since + client);
        }
        (!self.stays()).then(|| self.since + ending)
    }
}

/// Returns the length of the description of a job, in bytes: of its files and arguments.
pub(super) fn description_len(spec: &Spec) -> usize {
    encoded_len(&(&spec.app, &spec.args, &spec.inputs))
}

/// Returns the record of a job's end without its nodes.
pub(super) fn ended(job: JobId, spec: &Spec, ticket: Ticket, end: JobEnd, ended_ms: u64) -> EndedRecord {
    let qos = ticket.qos;
    EndedRecord {
        job,
        app: spec.app.clone(),
        wanted: wanted(spec),
        limit_ms: limit_ms(spec),
        ticket,
        nodes: Vec::new(),
        reports: Vec::new(),
        end,
        ended_ms,
        output: None,
        expired: false,
        qos,
    }
}

/// Returns the number of nodes that a job wants, 0 for all.
pub(super) fn wanted(spec: &Spec) -> u16 {
    match &spec.wanted {
        Wanted::Any(count) => *count,
        Wanted::Named(names) => u16::try_from(names.len()).unwrap_or(u16::MAX),
    }
}

/// Returns the time limit of a job, in milliseconds.
pub(super) fn limit_ms(spec: &Spec) -> Option<u64> {
    spec.limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))
}
