//! Jobs and the spool: input that comes from it, output that goes to it and is fetched, and the time for
//! which files are kept.

use super::super::spool::{
    FoundFile, SpoolFile, SpoolFiles, SpoolOrder, SpoolPart, SpoolReader, SpoolReport,
};
use super::super::{Action, ConnId, Core, Record};
use super::{Job, Phase, Stored};
use proto::{JobId, Reason, Refusal, ToClient, ToNode};
use std::collections::BTreeSet;
use std::time::Duration;

/// The number of bytes to read at once for a job, and for a client.
pub(super) const READ: u64 = 192 << 10;

/// Input that comes from the spool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Feeding {
    /// The position of the next byte to read.
    next: u64,
    /// True while a read is ordered.
    asked: bool,
}

/// Bytes for which a client waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch(pub(super) Fetched);

/// The kind of bytes for which a client waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fetched {
    /// Output, with the length of the whole; `None` while the job runs.
    Output(Option<u64>),
    /// Lines of a log.
    Log,
}

impl Job {
    /// Returns true if the output goes to the spool.
    pub(super) fn spools(&self) -> bool {
        self.ticket.terms.detach && self.spec.keep.is_none()
    }
}

impl Core {
    /// Takes over the files of a former process. Those of no job are removed.
    pub(in super::super) fn restore_spool(&mut self, found: &[FoundFile]) {
        let of_queue = |job: JobId| self.jobs.waiting.iter().any(|waiting| waiting.number == job);
        let of_running = |job: JobId| self.jobs.running.values().any(|running| running.first == job);
        let wanted = |found: &&FoundFile| {
            let job = found.file.job;
            match found.file.part {
                SpoolPart::Input => found.whole && (of_queue(job) || of_running(job)),
                SpoolPart::Log => of_queue(job) || of_running(job) || self.history.get(job).is_some(),
                SpoolPart::Output => {
                    of_running(job)
                        || found.whole && self.history.get(job).is_some_and(|ended| ended.output.is_some())
                }
            }
        };
        let (stay, go): (Vec<&FoundFile>, Vec<&FoundFile>) = found.iter().partition(wanted);
        let stay: Vec<FoundFile> = stay.into_iter().copied().collect();
        let go: Vec<SpoolFile> = go.into_iter().map(|found| found.file).collect();
        self.jobs.files = SpoolFiles::new(&stay);
        self.actions.extend(go.into_iter().map(|file| Action::Spool(SpoolOrder::Remove { file })));
        for job in self.jobs.running.values_mut().filter(|job| job.spools()) {
            let len = self.jobs.files.len(SpoolFile::output(job.first)).unwrap_or(0);
            job.output = super::output::OutputFlow::from(len);
        }
        let lost = self.jobs.waiting.iter().filter(|waiting| {
            let len = super::arrival::input_len(waiting);
            waiting.ticket.terms.detach
                && len > 0
                && self.jobs.files.len(SpoolFile::input(waiting.number)) != Some(len)
        });
        let lost: Vec<JobId> = lost.map(|waiting| waiting.number).collect();
        for job in lost {
            if let Some(submission) = self.take_waiting(job) {
                self.fail_submission(&submission, "its input is not in the spool any more".into());
            }
        }
        self.expire_spool();
    }

    /// Handles a report of the spool.
    pub(in super::super) fn spool_told(&mut self, report: &SpoolReport) {
        match report {
            SpoolReport::Written { file, run, end } => match file.part {
                SpoolPart::Input => self.input_written(file.job, *end),
                SpoolPart::Output => self.output_written(*run, *end),
                SpoolPart::Log => self.log_written(file.job, *end),
            },
            SpoolReport::Whole { file, run } => match file.part {
                SpoolPart::Input => self.input_arrived(file.job),
                SpoolPart::Output => {
                    if let Some(job) = self.jobs.running.get_mut(run) {
                        job.stored = Stored::Whole;
                        self.end_if_all_are_done(*run);
                    }
                }
                SpoolPart::Log => {}
            },
            SpoolReport::Failed { file, run, reason } => match file.part {
                SpoolPart::Input => self.input_lost(file.job, reason),
                SpoolPart::Output => self.fail_job(*run, format!("its output cannot be stored: {reason}")),
                SpoolPart::Log => self.log_lost(file.job, reason),
            },
            SpoolReport::Read { reader: SpoolReader::Job(run), offset, bytes } => {
                self.input_read(*run, *offset, bytes);
            }
            SpoolReport::Read { reader: SpoolReader::Client(conn), offset, bytes } => {
                self.fetched(*conn, *offset, bytes);
            }
        }
    }

    /// Orders the next bytes of a job's input from the spool, if the job's nodes have room for them.
    pub(super) fn read_input(&mut self, id: JobId) {
        let Some(job) = self.jobs.running.get_mut(&id) else { return };
        let total = job.spec.inputs.iter().fold(0u64, |total, file| total.saturating_add(file.len));
        let Some(feeding) = job.feeding.as_mut().filter(|feeding| !feeding.asked) else { return };
        if job.phase != Phase::Loading || !job.reading || feeding.next >= total {
            return;
        }
        feeding.asked = true;
        let (file, reader, offset) = (SpoolFile::input(job.first), SpoolReader::Job(id), feeding.next);
        let len = usize::try_from(READ.min(total - offset)).unwrap_or(0);
        self.actions.push(Action::Spool(SpoolOrder::Read { file, reader, offset, len }));
    }

    fn input_read(&mut self, id: JobId, offset: u64, bytes: &Result<Vec<u8>, Reason>) {
        let Some(job) = self.jobs.running.get_mut(&id).filter(|job| job.phase == Phase::Loading) else {
            return;
        };
        let Some(feeding) = job.feeding.as_mut().filter(|feeding| feeding.next == offset) else { return };
        match bytes {
            Ok(bytes) => {
                *feeding = Feeding { next: offset + bytes.len() as u64, asked: false };
                if let Err(excess) = self.cut_input(id, bytes) {
                    return self.fail_job(id, excess.to_string());
                }
                self.read_input(id);
            }
            Err(reason) => self.fail_job(id, format!("its input in the spool cannot be read: {reason}")),
        }
    }

    /// Stores output of a job, which begins at `offset`.
    pub(super) fn store_output(&mut self, id: JobId, offset: u64, bytes: Vec<u8>) {
        let Some(job) = self.jobs.running.get(&id) else { return };
        let (file, end) = (SpoolFile::output(job.first), offset + bytes.len() as u64);
        let most = self.config.rules.spool.job_bytes;
        if end > most {
            return self
                .fail_job(id, format!("the spool accepts {most} bytes of output of a job, and it has more"));
        }
        if let Some(reason) = self.full_spool(bytes.len() as u64) {
            return self.fail_job(id, format!("its output cannot be stored: {reason}"));
        }
        self.jobs.files.set(file, end);
        self.actions.push(Action::Spool(SpoolOrder::Append { file, run: id, offset, bytes }));
    }

    fn output_written(&mut self, id: JobId, end: u64) {
        let Some(job) = self.jobs.running.get_mut(&id) else { return };
        job.output.taken = job.output.taken.max(end);
        let first = job.parts.first().map(|part| part.node);
        if let Some(conn) = first.and_then(|node| self.members.get(node)).and_then(|live| live.conn) {
            self.tell_node(conn, ToNode::JobOutputAck { job: id, bytes: end });
        }
    }

    /// Returns true once the output of a job whose nodes are done is whole in the spool, or if it does not go
    /// there.
    pub(super) fn is_stored(&mut self, id: JobId) -> bool {
        let Some(job) = self.jobs.running.get_mut(&id) else { return false };
        if !job.spools() || job.stored == Stored::Whole {
            return true;
        }
        if job.stored == Stored::Open {
            job.stored = Stored::Ordered;
            let file = SpoolFile::output(job.first);
            let len = self.jobs.files.len(file).unwrap_or(0);
            self.jobs.files.set(file, len);
            self.actions.push(Action::Spool(SpoolOrder::Complete { file, run: id }));
        }
        false
    }

    /// Removes a file from the spool, if it is there.
    pub(super) fn remove_spooled(&mut self, file: SpoolFile) {
        if self.jobs.files.remove(file) {
            self.actions.push(Action::Spool(SpoolOrder::Remove { file }));
        }
    }

    /// Removes all files of a job from the spool.
    pub(in super::super) fn remove_all_spooled(&mut self, job: JobId) {
        self.remove_spooled(SpoolFile::input(job));
        self.remove_spooled(SpoolFile::output(job));
        self.remove_spooled(SpoolFile::log(job));
    }

    /// Removes the input and the output of a job from the spool. Its log stays.
    pub(super) fn remove_data(&mut self, job: JobId) {
        self.remove_spooled(SpoolFile::input(job));
        self.remove_spooled(SpoolFile::output(job));
    }

    /// Returns the length of a job's log, if the spool has one.
    pub(super) fn log_len(&self, job: JobId) -> Option<u64> {
        self.jobs.files.len(SpoolFile::log(job))
    }

    /// Returns true if a job, named by its present number, has its output in the spool.
    pub(in super::super) fn keeps_output(&self, job: JobId) -> bool {
        self.jobs.running.get(&job).is_some_and(Job::spools)
    }

    /// Handles a client that fetches output of a job from `offset` on.
    pub(in super::super) fn tell_output(&mut self, conn: ConnId, job: JobId, offset: u64) {
        if self.jobs.fetches.contains_key(&conn) {
            return self.fail_client(conn, "this connection already waits for bytes of a job".into());
        }
        let running = self.jobs.running.iter().find(|(id, running)| **id == job || running.first == job);
        let running = running.filter(|(_, running)| running.spools());
        let first = running.map_or(job, |(_, running)| running.first);
        let file = SpoolFile::output(first);
        let (end, total) = match running {
            Some((_, running)) => (running.output.taken, None),
            None => match self.history.get(job).and_then(|ended| ended.output) {
                Some(len) if self.jobs.files.len(file).is_some() => (len, Some(len)),
                _ => return self.show_job(conn, job),
            },
        };
        if offset >= end {
            let whole = total.is_some();
            return self.tell_client(conn, ToClient::JobOutput { bytes: Vec::new(), whole });
        }
        let (reader, len) = (SpoolReader::Client(conn), usize::try_from(READ.min(end - offset)).unwrap_or(0));
        self.jobs.fetches.insert(conn, Fetch(Fetched::Output(total)));
        self.actions.push(Action::Spool(SpoolOrder::Read { file, reader, offset, len }));
    }

    fn fetched(&mut self, conn: ConnId, offset: u64, bytes: &Result<Vec<u8>, Reason>) {
        let Some(Fetch(kind)) = self.jobs.fetches.remove(&conn) else { return };
        match (kind, bytes) {
            (Fetched::Output(total), Ok(bytes)) => {
                let whole = total == Some(offset + bytes.len() as u64);
                self.tell_client(conn, ToClient::JobOutput { bytes: bytes.clone(), whole });
            }
            (Fetched::Log, Ok(bytes)) => {
                self.tell_client(conn, ToClient::JobLog { bytes: bytes.clone(), open: true });
            }
            (_, Err(reason)) => {
                let reason = format!("the file in the spool cannot be read: {reason}");
                self.refuse_client(conn, Refusal::NotFound, reason);
            }
        }
    }

    /// Removes the files of jobs that have ended long ago, and of the oldest of too many.
    pub(in super::super) fn expire_spool(&mut self) {
        let limits = self.config.rules.spool;
        let keep = u64::try_from(limits.keep.as_millis()).unwrap_or(u64::MAX);
        let now = self.unix_ms();
        let jobs: BTreeSet<JobId> = self.jobs.files.all().map(|(file, _)| file.job).collect();
        let ended: Vec<(JobId, u64)> =
            jobs.into_iter().filter_map(|job| Some((job, self.history.get(job)?.ended_ms))).collect();
        let mut kept: u64 = ended.iter().map(|(job, _)| self.jobs.files.of_job(*job)).sum();
        let mut next = None;
        for (job, ended_ms) in ended {
            let end = ended_ms.saturating_add(keep);
            if end <= now || kept > limits.keep_bytes {
                kept -= self.jobs.files.of_job(job);
                self.remove_all_spooled(job);
                let expired = self.history.expire_files(job);
                self.save(expired.into_iter().map(Record::Ended).collect());
                self.log(format!("job {}: its output and its log are not kept any longer", job.0));
            } else {
                next = Some(next.map_or(end, |next: u64| next.min(end)));
            }
        }
        self.jobs.expiry = next.map(|next| self.now + Duration::from_millis(next.saturating_sub(now)));
    }
}
