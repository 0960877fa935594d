//! The history: the jobs that have ended, for as long as the operator wants to know of them.

use super::{ConnId, Core, EndedRecord, KeptReport, Record};
use platform::Instant;
use proto::{JobId, Refusal};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The longest reports of the nodes of one job, in bytes, so that a message can have them.
pub(super) const MAX_REPORTS: usize = 256 << 10;

/// The length of a record without its texts, in bytes.
const BASE: usize = 512;

/// Returns the reports of a job with the names of their nodes; none if they are too long.
pub(super) fn bounded(
    reports: impl Iterator<Item = (String, KeptReport)> + Clone,
) -> Vec<(String, KeptReport)> {
    let len = reports.clone().map(|(name, report)| name.len() + report.len()).sum::<usize>();
    if len > MAX_REPORTS { Vec::new() } else { reports.collect() }
}

/// Returns the memory of a record, in bytes.
fn size(ended: &EndedRecord) -> usize {
    let nodes = ended.nodes.iter().map(|name| name.len() + size_of::<String>());
    let reports = ended.reports.iter();
    let reports = reports.map(|(name, report)| name.len() + report.len() + 2 * size_of::<String>());
    let terms = &ended.ticket.terms;
    let texts = terms.exclude.iter().map(|name| name.len() + size_of::<String>());
    let texts = texts.sum::<usize>() + ended.app.len() + ended.ticket.by.len() + ended.end.reason().len();
    BASE + nodes.chain(reports).sum::<usize>() + texts
}

/// The jobs that have ended, by number.
#[derive(Debug, Default)]
pub(super) struct History {
    ended: BTreeMap<JobId, Arc<EndedRecord>>,
    /// The memory of all of them, in bytes.
    bytes: usize,
    /// The time at which the next of them is forgotten. A tick that comes later does no harm.
    next: Option<Instant>,
    /// The clients that wait for the end of a job, each until a deadline.
    waits: BTreeMap<ConnId, (JobId, Instant)>,
}

impl History {
    fn insert(&mut self, ended: Arc<EndedRecord>) {
        self.bytes += size(&ended);
        if let Some(former) = self.ended.insert(ended.job, ended) {
            self.bytes -= size(&former);
        }
    }

    /// Notes that the files of a job are not kept any longer, and returns its record if that is new.
    pub(super) fn expire_files(&mut self, job: JobId) -> Option<Arc<EndedRecord>> {
        let ended = self.ended.get_mut(&job).filter(|ended| !ended.expired)?;
        Arc::make_mut(ended).expired = true;
        Some(ended.clone())
    }

    fn remove(&mut self, job: JobId) {
        self.bytes -= self.ended.remove(&job).map_or(0, |ended| size(&ended));
    }

    pub(super) fn get(&self, job: JobId) -> Option<&Arc<EndedRecord>> {
        self.ended.get(&job)
    }

    /// Returns the jobs with larger numbers, by number.
    pub(super) fn after(&self, job: JobId) -> impl Iterator<Item = &Arc<EndedRecord>> {
        self.ended.range(JobId(job.0.saturating_add(1))..).map(|(_, ended)| ended)
    }

    /// Lets a client wait for the end of a job. Returns true if it waits for one already.
    pub(super) fn wait(&mut self, conn: ConnId, job: JobId, until: Instant) -> bool {
        self.waits.insert(conn, (job, until)).is_some()
    }

    pub(super) fn forget(&mut self, conn: ConnId) {
        self.waits.remove(&conn);
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.waits.values().map(|(_, until)| *until).min()
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| next <= now)
    }
}

impl Core {
    pub(super) fn restore_history(&mut self, history: Vec<EndedRecord>) {
        history.into_iter().for_each(|ended| self.history.insert(Arc::new(ended)));
        self.expire_history();
    }

    /// Records the end of a job.
    pub(super) fn record_end(&mut self, ended: EndedRecord) {
        let ended = Arc::new(ended);
        self.save(vec![Record::Ended(ended.clone())]);
        let job = ended.job;
        self.history.insert(ended);
        let waits = self.history.waits.extract_if(.., |_, (of, _)| *of == job).map(|(conn, _)| conn);
        let waits: Vec<ConnId> = waits.collect();
        for conn in waits {
            self.show_job(conn, job);
        }
        self.expire_history();
        self.expire_spool();
    }

    /// Ends the waits of clients whose time is over.
    pub(super) fn expire_waits(&mut self) {
        let now = self.now;
        let late = self.history.waits.extract_if(.., |_, (_, until)| *until <= now);
        let late: Vec<(ConnId, JobId)> = late.map(|(conn, (job, _))| (conn, job)).collect();
        for (conn, job) in late {
            let reason = format!("job {} has not ended in time", job.0);
            self.refuse_client(conn, Refusal::TimedOut, reason);
        }
    }

    /// Forgets the jobs that have ended long ago, and the oldest of too many.
    pub(super) fn expire_history(&mut self) {
        // The history says whether files are kept.
        let keep = self.config.history.max(self.config.rules.spool.keep);
        let keep = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
        let now = self.unix_ms();
        let over = |ended: &EndedRecord| ended.ended_ms.saturating_add(keep) <= now;
        let excess = self.history.ended.len().saturating_sub(self.config.history_jobs);
        let mut too_long = self.history.bytes.saturating_sub(self.config.history_bytes);
        let jobs = self.history.ended.iter().enumerate();
        let gone = jobs.filter(|(place, (_, ended))| {
            let is_gone = *place < excess || too_long > 0 || over(ended);
            too_long = too_long.saturating_sub(if is_gone { size(ended) } else { 0 });
            is_gone
        });
        let gone: Vec<JobId> = gone.map(|(_, (&job, _))| job).collect();
        for job in &gone {
            self.history.remove(*job);
            self.remove_all_spooled(*job);
        }
        self.save(gone.into_iter().map(Record::EndedGone).collect());
        let ends = self.history.ended.values().map(|ended| ended.ended_ms.saturating_add(keep));
        let left = ends.min().map(|end| std::time::Duration::from_millis(end.saturating_sub(now)));
        self.history.next = left.map(|left| self.now + left);
    }
}
