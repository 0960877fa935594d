//! The arrival of input of a job without a client: it is in the spool before the job is acknowledged.

use super::super::spool::{SpoolFile, SpoolOrder};
use super::super::{Action, ConnId, Core};
use super::Jobs;
use super::input::MAX_INPUT;
use super::queue::Submission;
use platform::Instant;
use proto::{JobId, Reason, ToClient};
use std::time::Duration;

/// The number of bytes that may wait for the disk. Above it, no more is received from the client.
const WINDOW: u64 = 4 << 20;

/// A submission whose input arrives.
#[derive(Debug)]
pub(super) struct Arrival {
    submission: Submission,
    /// The length of the input, in bytes.
    total: u64,
    /// The number of bytes that were received, and of those that were written.
    received: u64,
    written: u64,
    /// True if the client's messages are received.
    reading: bool,
    /// The time of the last sign of progress.
    pub(super) since: Instant,
}

impl Arrival {
    fn file(&self) -> SpoolFile {
        SpoolFile::input(self.submission.number)
    }
}

/// Returns the length of the input of a submission, in bytes.
pub(super) fn input_len(submission: &Submission) -> u64 {
    submission.spec.inputs.iter().fold(0, |total, file| total.saturating_add(file.len))
}

impl Jobs {
    /// Returns the connection and the arrival of the input of a job.
    fn arrival_of(&mut self, job: JobId) -> Option<(ConnId, &mut Arrival)> {
        let mut arrivals = self.arrivals.iter_mut();
        let found = arrivals.find(|(_, arrival)| arrival.submission.number == job)?;
        Some((*found.0, found.1))
    }

    /// Returns the next time at which a client has sent nothing for too long.
    pub(super) fn next_late_arrival(&self, timeout: Duration) -> Option<Instant> {
        self.arrivals.values().filter(|arrival| arrival.reading).map(|arrival| arrival.since + timeout).min()
    }
}

impl Core {
    /// Returns the reason why the spool cannot have the input of a job.
    pub(super) fn input_objection(&self, total: u64) -> Option<Reason> {
        let most = self.config.rules.spool.job_bytes;
        if total > most {
            return Some(format!("the spool accepts {most} bytes of input of a job, and this has {total}"));
        }
        self.full_spool(total)
    }

    /// Returns the reason why the spool has no room for more bytes.
    pub(super) fn full_spool(&self, more: u64) -> Option<Reason> {
        let (most, used) = (self.config.rules.spool.bytes, self.jobs.files.bytes());
        (used.saturating_add(more) > most)
            .then(|| format!("the spool is full: {used} of {most} bytes are used"))
    }

    /// Lets a client send the input of a job that will have no client.
    pub(super) fn expect_input(&mut self, conn: ConnId, submission: Submission) {
        let (job, total) = (submission.number, input_len(&submission));
        let since = self.now;
        let arrival = Arrival { submission, total, received: 0, written: 0, reading: true, since };
        self.jobs.files.set(arrival.file(), total);
        self.jobs.arrivals.insert(conn, arrival);
        self.commit_to_client(conn, ToClient::InputWanted { job });
    }

    /// Handles bytes of input that goes to the spool. Returns false if this client sends none.
    pub(super) fn arriving_input(&mut self, conn: ConnId, job: JobId, bytes: &[u8]) -> bool {
        let now = self.now;
        let Some(arrival) = self.jobs.arrivals.get_mut(&conn) else { return false };
        let len = bytes.len() as u64;
        let complaint = if job != arrival.submission.number {
            Some("input that no job waits for".into())
        } else if bytes.len() > MAX_INPUT {
            Some(format!("more than {MAX_INPUT} bytes of input in one message"))
        } else if len > arrival.total - arrival.received {
            Some("more input than announced".into())
        } else {
            None
        };
        if let Some(complaint) = complaint {
            self.fail_client(conn, complaint);
            return true;
        }
        if bytes.is_empty() {
            return true;
        }
        let (file, offset) = (arrival.file(), arrival.received);
        (arrival.received, arrival.since) = (offset + len, now);
        let whole = arrival.received == arrival.total;
        let bytes = bytes.to_vec();
        self.actions.push(Action::Spool(SpoolOrder::Append { file, run: job, offset, bytes }));
        if whole {
            self.actions.push(Action::Spool(SpoolOrder::Complete { file, run: job }));
        }
        self.regulate_arrival(conn);
        true
    }

    /// Handles the report that input was written.
    pub(super) fn input_written(&mut self, job: JobId, end: u64) {
        let now = self.now;
        let Some((conn, arrival)) = self.jobs.arrival_of(job) else { return };
        (arrival.written, arrival.since) = (end, now);
        self.regulate_arrival(conn);
    }

    /// Stops or resumes receiving input, depending on the number of bytes that wait for the disk.
    fn regulate_arrival(&mut self, conn: ConnId) {
        let Some(arrival) = self.jobs.arrivals.get_mut(&conn) else { return };
        let window = if arrival.reading { WINDOW } else { WINDOW / 2 };
        // After the last byte the client waits, and so does its timeout.
        let on = arrival.received < arrival.total && arrival.received - arrival.written <= window;
        if on != arrival.reading {
            arrival.reading = on;
            self.actions.push(Action::Reading { conn, on });
        }
    }

    /// Handles the report that all input is in the spool: the job is queued, and its client told.
    pub(super) fn input_arrived(&mut self, job: JobId) {
        let Some((conn, _)) = self.jobs.arrival_of(job) else { return };
        let Some(arrival) = self.jobs.arrivals.remove(&conn) else { return };
        self.read_again(conn, &arrival);
        let submission = arrival.submission;
        // Much may have changed meanwhile.
        if let Some(reason) = self.objection(conn, &submission.spec, &submission.ticket) {
            self.remove_spooled(SpoolFile::input(job));
            return self.fail_client(conn, reason);
        }
        self.enqueue(conn, submission);
    }

    /// Handles the report that input could not be written.
    pub(super) fn input_lost(&mut self, job: JobId, reason: &str) {
        if let Some((conn, _)) = self.jobs.arrival_of(job) {
            self.fail_client(conn, format!("the input cannot be stored: {reason}"));
        }
    }

    /// Forgets the input of a client whose connection has ended, or ends.
    pub(super) fn forget_arrival(&mut self, conn: ConnId) {
        if let Some(arrival) = self.jobs.arrivals.remove(&conn) {
            self.read_again(conn, &arrival);
            self.remove_spooled(arrival.file());
        }
    }

    fn read_again(&mut self, conn: ConnId, arrival: &Arrival) {
        if !arrival.reading {
            self.actions.push(Action::Reading { conn, on: true });
        }
    }

    /// Ends the submissions whose input arrives.
    pub(in super::super) fn fail_arrivals(&mut self, reason: &str) {
        let conns: Vec<ConnId> = self.jobs.arrivals.keys().copied().collect();
        conns.into_iter().for_each(|conn| self.fail_client(conn, reason.into()));
    }

    /// Ends the submissions whose client sends nothing.
    pub(super) fn expire_arrivals(&mut self) {
        let (now, timeout) = (self.now, self.config.reply_timeout);
        let late = |(_, arrival): &(&ConnId, &Arrival)| arrival.reading && arrival.since + timeout <= now;
        let late: Vec<ConnId> = self.jobs.arrivals.iter().filter(late).map(|(conn, _)| *conn).collect();
        late.into_iter().for_each(|conn| self.fail_client(conn, "the client sent no input".into()));
    }
}
