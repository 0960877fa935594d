//! Clients that come back to their job, jobs that are done and whose clients may not know it, and the jobs
//! that a manager finds when it starts.

use super::super::records::{EndedRecord, JobRecord, KeptReport, Record, Stage};
use super::super::spool::SpoolFile;
use super::super::{ConnId, Core};
use super::output::OutputFlow;
use super::{Job, Part, Phase, Submission, queue};
use crate::core::history::bounded;
use platform::Instant;
use proto::{JobEnd, JobId, NodeId, ToClient};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The first protocol version that has [`ToClient::Queued`].
const QUEUE: u16 = 10;

/// A job that is done, and whose client may not know it.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) record: Arc<JobRecord>,
    /// The client that was told; `None` after a restart of the manager.
    pub(super) client: Option<ConnId>,
    pub(super) since: Instant,
}

impl Core {
    /// Takes over the jobs of a former process. Those that had not begun to compute start again when their
    /// clients come back; the others go on.
    pub(in super::super) fn restore_jobs(&mut self, jobs: Vec<JobRecord>) {
        let now = self.now;
        // A job that has started again may have a record of each of its numbers. The last one counts.
        let mut last: BTreeMap<JobId, JobRecord> = BTreeMap::new();
        let mut gone = Vec::new();
        for record in jobs {
            let former = last.remove(&record.first);
            let (newer, older) = match former {
                Some(former) if former.job > record.job => (former, Some(record)),
                former => (record, former),
            };
            gone.extend(older.map(|older| Record::JobGone(older.job)));
            last.insert(newer.first, newer);
        }
        self.save(gone);
        for record in last.into_values() {
            match record.stage {
                Stage::Loading | Stage::Queued => self.restore_waiting(record),
                Stage::Running => self.restore_running(record),
                Stage::Done { .. } => {
                    let id = record.job;
                    let finished = Finished { record: Arc::new(record), client: None, since: now };
                    self.jobs.finished.insert(id, finished);
                }
            }
        }
        // The end of a node and the end of its job are two records: the last may be missing.
        let lost = |job: &Job| {
            job.parts.iter().map(|part| (part.node, part.incarnation)).find(|(node, incarnation)| {
                self.members.get(*node).is_none_or(|live| live.member.incarnation != *incarnation)
            })
        };
        let lost: Vec<(JobId, NodeId)> =
            self.jobs.running.iter().filter_map(|(&id, job)| Some((id, lost(job)?.0))).collect();
        for (id, node) in lost {
            self.job_lost_node(id, &format!("{node} has died"));
        }
    }

    fn restore_waiting(&mut self, record: JobRecord) {
        let JobRecord { job, first, spec, nodes, stage, ticket, .. } = record;
        let last = (stage == Stage::Loading).then_some(job);
        let nodes = nodes.into_iter().map(|(node, _)| node).collect();
        let (since, number) = (self.now, first);
        let len = queue::description_len(&spec);
        let waiting = Submission { conn: None, spec, ticket, since, number, last, nodes, told: None, len };
        self.jobs.waiting.push(waiting);
    }

    fn restore_running(&mut self, record: JobRecord) {
        let now = self.now;
        let JobRecord { job: id, first, spec, nodes, ticket, .. } = record;
        let mut parts = Vec::new();
        for member in nodes {
            let mut name = member.0.to_string();
            if let Some(live) = self.members.get_mut(member.0) {
                live.job = Some(id);
                name.clone_from(&live.member.name);
            }
            parts.push(Part { accepted: true, ..Part::new(member, name, now) });
        }
        let job = Job {
            phase: Phase::Running,
            last_input: Some(now),
            ..Job::new((None, first), (spec, ticket), parts, now)
        };
        self.jobs.running.insert(id, job);
    }

    /// Leaves all jobs to the next process of the manager. Each client learns the number of its job, with
    /// which it attaches then; a job whose client cannot learn it fails with `reason`.
    pub(in super::super) fn leave_jobs(&mut self, reason: &str) {
        // The clients of the others were told of the start, and so of the number.
        let starting = self.jobs.running.iter().filter(|(_, job)| job.phase == Phase::Starting);
        let starting: Vec<(JobId, JobId, ConnId)> =
            starting.filter_map(|(&id, job)| Some((id, job.first, job.client?))).collect();
        for (id, first, conn) in starting {
            if self.knows_queue(conn) {
                self.commit_to_client(conn, ToClient::Queued { job: first, reason: reason.into() });
            } else {
                self.fail_job(id, reason.into());
            }
        }
        let mut stay = Vec::new();
        for submission in std::mem::take(&mut self.jobs.waiting) {
            match submission.conn {
                Some(conn) if self.knows_queue(conn) => {
                    if !submission.is_recorded() {
                        self.save_queued(&submission);
                    }
                    let job = submission.number;
                    self.commit_to_client(conn, ToClient::Queued { job, reason: reason.into() });
                }
                Some(_) if submission.last.is_none() => {
                    self.fail_submission(&submission, reason.into());
                    continue;
                }
                _ => {}
            }
            stay.push(submission);
        }
        self.jobs.waiting = stay;
    }

    /// Returns true if the client at a connection understands [`ToClient::Queued`].
    fn knows_queue(&self, conn: ConnId) -> bool {
        self.version(conn) >= QUEUE
    }

    /// Handles a client that comes back to its job.
    pub(in super::super) fn attach(&mut self, conn: ConnId, id: JobId, output: u64) {
        if self.jobs.clients.contains_key(&conn) {
            return self.fail_client(conn, "this connection already has a job".into());
        }
        let waits = |submission: &&Submission| submission.is(id) && submission.ticket.terms.detach;
        let runs =
            |(number, job): &(&JobId, &Job)| (**number == id || job.first == id) && job.ticket.terms.detach;
        if self.jobs.waiting.iter().find(waits).is_some() || self.jobs.running.iter().find(runs).is_some() {
            return self.fail_client(conn, format!("job {} has no client", id.0));
        }
        if let Some(mut submission) = self.take_waiting(id) {
            let former = submission.conn.replace(conn).filter(|other| self.connections.contains_key(other));
            if let Some(other) = former {
                self.fail_client(other, "another connection has taken over the job".into());
            }
            (submission.since, submission.told) = (self.now, None);
            self.jobs.waiting.push(submission);
            return self.schedule();
        }
        let is = |(found, first): (&JobId, JobId)| *found == id || first == id;
        let finished = self.jobs.finished.iter().find(|(found, done)| is((found, done.record.first)));
        if let Some(found) = finished.map(|(&found, _)| found) {
            return self.tell_finished(found, conn);
        }
        let running = self.jobs.running.iter().find(|(found, job)| is((found, job.first)));
        let Some((found, client)) = running.map(|(&found, job)| (found, job.client)) else {
            let reason = format!("there is no job {}: it has failed or was cancelled", id.0);
            return self.fail_client(conn, reason);
        };
        if let Some(client) = client {
            self.jobs.clients.remove(&client);
        }
        let now = self.now;
        self.jobs.clients.insert(conn, found);
        let mut reports = Vec::new();
        if let Some(job) = self.jobs.running.get_mut(&found) {
            (job.client, job.waiting, job.output) = (Some(conn), now, OutputFlow::from(output));
            reports.extend(
                job.parts.iter().filter_map(|part| Some((part.node, part.report.as_ref()?.report()?))),
            );
        }
        if let Some(client) = client.filter(|client| self.connections.contains_key(client)) {
            self.fail_client(client, "another connection has taken over the job".into());
        }
        self.log(format!("job {}: its client is back", found.0));
        for (node, report) in reports {
            self.tell_client(conn, ToClient::Report { node, report });
        }
        let loading = self.jobs.running.get(&found).is_some_and(|job| job.phase != Phase::Running);
        if loading {
            return self.restart_job(found, "its client has come back in the middle of the input");
        }
        self.ask_output(found);
    }

    /// Records that a job is done, and tells its client.
    pub(super) fn finish_job(&mut self, id: JobId, job: Job) {
        let first = job.first_input.or(job.last_input).unwrap_or(self.now);
        let last = job.last_input.unwrap_or(self.now);
        let micros = |from: Instant, to: Instant| u64::try_from((to - from).as_micros()).unwrap_or(u64::MAX);
        let (run_us, stream_us) = (micros(last, self.now), micros(first, last));
        let nodes = job.parts.iter().map(|part| (part.node, part.incarnation)).collect();
        let over: Vec<NodeId> = job.parts.iter().map(|part| part.node).collect();
        let reports: Vec<(NodeId, KeptReport)> =
            job.parts.iter().filter_map(|part| Some((part.node, part.report.clone()?))).collect();
        if let Some(name) = &job.spec.keep {
            let kept = reports.iter().filter_map(|(node, report)| Some((*node, report.report()?.kept)));
            let kept = kept.collect();
            self.keep_dataset(name.clone(), id, job.spec.app.clone(), kept);
        }
        self.record_job_end(&job, JobEnd::Done { run_us, stream_us });
        let stage = Stage::Done { reports, run_us, stream_us };
        let (first, qos, ticket) = (job.first, job.ticket.qos, job.ticket);
        let record = Arc::new(JobRecord { job: id, first, spec: job.spec, nodes, stage, ticket, qos });
        self.save(vec![Record::Job(record.clone())]);
        for node in over {
            self.forget_part(node, id);
        }
        self.remove_spooled(SpoolFile::input(first));
        self.log(format!("job {}: done, {stream_us} us for the input, {run_us} us of work", id.0));
        if record.ticket.terms.detach {
            return self.job_gone(id);
        }
        let finished = Finished { record, client: job.client, since: self.now };
        if let Some(client) = job.client {
            self.commit_to_client(client, ToClient::Done { run_us, stream_us });
        }
        self.jobs.finished.insert(id, finished);
    }

    /// Records the end of a job that has started.
    pub(super) fn record_job_end(&mut self, job: &Job, end: JobEnd) {
        let is_done = matches!(end, JobEnd::Done { .. });
        let output = self.jobs.files.len(SpoolFile::output(job.first)).filter(|_| is_done);
        let ended = queue::ended(job.first, &job.spec, job.ticket.clone(), end, self.unix_ms());
        let reports = job.parts.iter().filter_map(|part| Some((part.name.clone(), part.report.clone()?)));
        let nodes = job.parts.iter().map(|part| part.name.clone()).collect();
        self.record_end(EndedRecord { nodes, reports: bounded(reports), output, ..ended });
    }

    /// Tells a client that has come back that its job is done.
    fn tell_finished(&mut self, id: JobId, conn: ConnId) {
        let now = self.now;
        let Some(finished) = self.jobs.finished.get_mut(&id) else { return };
        (finished.client, finished.since) = (Some(conn), now);
        let record = finished.record.clone();
        let Stage::Done { reports, run_us, stream_us } = &record.stage else { return };
        for (node, report) in reports {
            if let Some(report) = report.report() {
                self.commit_to_client(conn, ToClient::Report { node: *node, report });
            }
        }
        let (run_us, stream_us) = (*run_us, *stream_us);
        self.commit_to_client(conn, ToClient::Done { run_us, stream_us });
    }

    /// Forgets the jobs that are done and satisfy `over`.
    fn forget_finished(&mut self, over: impl Fn(&Finished) -> bool) {
        let gone: Vec<JobId> =
            self.jobs.finished.iter().filter(|(_, done)| over(done)).map(|(&id, _)| id).collect();
        for id in &gone {
            self.jobs.finished.remove(id);
        }
        self.save(gone.into_iter().map(Record::JobGone).collect());
    }

    /// Forgets the jobs that are done and whose client was told and has gone.
    pub(super) fn forget_finished_of(&mut self, conn: ConnId) {
        self.forget_finished(|done| done.client == Some(conn));
    }

    pub(super) fn expire_finished(&mut self) {
        let (now, timeout) = (self.now, self.config.reply_timeout);
        self.forget_finished(|done| done.since + timeout <= now);
    }
}
