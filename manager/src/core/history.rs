//! The history: the jobs that have ended, for as long as the operator wants to know of them.

use super::{Core, EndedRecord, Record};
use platform::Instant;
use proto::JobId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The jobs that have ended, by number.
#[derive(Debug, Default)]
pub(super) struct History {
    ended: BTreeMap<JobId, Arc<EndedRecord>>,
    /// The time at which the next of them is forgotten. A tick that comes later does no harm.
    next: Option<Instant>,
}

impl History {
    pub(super) fn get(&self, job: JobId) -> Option<&Arc<EndedRecord>> {
        self.ended.get(&job)
    }

    /// Returns the jobs with larger numbers, by number.
    pub(super) fn after(&self, job: JobId) -> impl Iterator<Item = &Arc<EndedRecord>> {
        self.ended.range(JobId(job.0.saturating_add(1))..).map(|(_, ended)| ended)
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| next <= now)
    }
}

impl Core {
    pub(super) fn restore_history(&mut self, history: Vec<EndedRecord>) {
        self.history.ended = history.into_iter().map(|ended| (ended.job, Arc::new(ended))).collect();
        self.expire_history();
    }

    /// Records the end of a job.
    pub(super) fn record_end(&mut self, ended: EndedRecord) {
        let ended = Arc::new(ended);
        self.save(vec![Record::Ended(ended.clone())]);
        self.history.ended.insert(ended.job, ended);
        self.expire_history();
    }

    /// Forgets the jobs that have ended long ago, and the oldest of too many.
    pub(super) fn expire_history(&mut self) {
        let keep = u64::try_from(self.config.history.as_millis()).unwrap_or(u64::MAX);
        let now = self.unix_ms(self.now);
        let over = |ended: &EndedRecord| ended.ended_ms.saturating_add(keep) <= now;
        let excess = self.history.ended.len().saturating_sub(self.config.history_jobs);
        let jobs = self.history.ended.iter().enumerate();
        let gone = jobs.filter(|(place, (_, ended))| *place < excess || over(ended));
        let gone: Vec<JobId> = gone.map(|(_, (&job, _))| job).collect();
        for job in &gone {
            self.history.ended.remove(job);
        }
        self.save(gone.into_iter().map(Record::EndedGone).collect());
        let ends = self.history.ended.values().map(|ended| ended.ended_ms.saturating_add(keep));
        let left = ends.min().map(|end| std::time::Duration::from_millis(end.saturating_sub(now)));
        self.history.next = left.map(|left| self.now + left);
    }
}
