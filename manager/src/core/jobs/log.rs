//! The log of a job, in the spool: the lines that its nodes have logged during its time.

use super::super::spool::{SpoolFile, SpoolOrder, SpoolReader};
use super::super::telemetry::NodeTelemetry;
use super::super::{Action, ConnId, Core};
use super::spooled::{Fetch, Fetched, READ};
use super::{Job, Part};
use crate::utc;
use platform::Instant;
use proto::{JobId, LogLine, NodeId, Refusal, Severity, ToClient, printable};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::time::Duration;

/// The length of a log up to which all lines are kept, in bytes.
const HEAD: u64 = 1 << 20;

/// The length of the last lines of nodes, which are kept beyond [`HEAD`], in bytes.
const TAIL: u64 = 256 << 10;

/// The number of last lines of a node that are kept beyond [`HEAD`].
const LAST: usize = 50;

/// The number of bytes of all logs that may wait for the disk.
const WAITING: u64 = 1 << 20;

/// The time after the end of a node's part in which its lines arrive.
const LATE: Duration = Duration::from_secs(3);

/// The accuracy of the time of a line.
const SLACK: Duration = Duration::from_millis(500);

/// The logs of jobs whose lines may still come.
#[derive(Debug, Default)]
pub(super) struct Logs {
    open: BTreeMap<JobId, JobLog>,
    /// The parts of jobs that have ended just now, in the order of their ends.
    recent: VecDeque<Recent>,
    /// The number of bytes that wait for the disk.
    waiting: u64,
}

#[derive(Debug)]
struct JobLog {
    /// The number of bytes that were written.
    stored: u64,
    /// The number of lines that found no room.
    dropped: u64,
    /// True if the file cannot be written.
    broken: bool,
}

/// Parts of a job that have ended.
#[derive(Debug)]
struct Recent {
    job: JobId,
    nodes: BTreeSet<NodeId>,
    began: Instant,
    ended: Instant,
}

impl Logs {
    /// Returns the time at which the parts that have ended just now are forgotten.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.recent.front().map(|recent| recent.ended + LATE)
    }

    /// Notes that the first `len` bytes of a log do not wait for the disk any more. Returns the log if it is
    /// open.
    fn settle(&mut self, job: JobId, len: u64) -> Option<&mut JobLog> {
        let log = self.open.get_mut(&job)?;
        self.waiting = self.waiting.saturating_sub(len.saturating_sub(log.stored));
        log.stored = log.stored.max(len);
        Some(log)
    }
}

/// Returns the time at which a node has logged a line, by its last report.
fn logged_at(told: Option<&NodeTelemetry>, now: Instant, at_us: u64) -> Instant {
    let Some((told, at)) = told.and_then(|told| Some((told, told.at?))) else { return now };
    let ago = |later: u64, earlier: u64| Duration::from_micros(later.saturating_sub(earlier));
    let before = Instant::from_nanos(
        at.as_nanos()
            .saturating_sub(u64::try_from(ago(told.uptime_us, at_us).as_nanos()).unwrap_or(u64::MAX)),
    );
    (before + ago(at_us, told.uptime_us).min(now - Instant::ZERO)).min(now)
}

impl Core {
    /// Takes lines of a node's log into that of its job. `kept` is false if the node has logged too much.
    pub(in super::super) fn log_lines(&mut self, node: NodeId, lines: &[u8], kept: bool) {
        let (now, told) = (self.now, self.told.nodes.get(&node));
        if !kept {
            let job = self.logging(node, now);
            let lines = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
            return job.into_iter().for_each(|job| self.log_of(job).dropped += lines);
        }
        let Some(name) = self.members.get(node).map(|live| printable(&live.member.name)) else { return };
        let mut texts: BTreeMap<JobId, (String, u64)> = BTreeMap::new();
        for line in LogLine::all(lines) {
            let at = logged_at(told, now, line.at_us);
            let Some(job) = self.logging(node, at) else { continue };
            let (text, count) = texts.entry(job).or_default();
            *count += 1;
            self.write_line(text, at, &name, (line.severity, line.text));
        }
        for (job, (text, count)) in texts {
            self.append_log(job, text, count, HEAD);
        }
    }

    fn write_line(&self, into: &mut String, at: Instant, node: &str, (severity, text): (Severity, &str)) {
        let wall = self.config.wall + (at - Instant::ZERO);
        let (time, millis, word) = (utc::text(wall), wall.subsec_millis(), severity.word());
        let _ = writeln!(into, "{time}.{millis:03} {node} {word}: {}", printable(text));
    }

    /// Returns the first number of the job to which a line belongs that a node has logged at a time.
    fn logging(&self, node: NodeId, at: Instant) -> Option<JobId> {
        let present = self.members.get(node)?.job.and_then(|id| {
            let running = self.jobs.running.get(&id).map(|job| (job.first, job.began));
            running.or_else(|| self.jobs.ending.get(&id).map(|ending| (ending.first, ending.began)))
        });
        if let Some((job, _)) = present.filter(|(_, began)| *began <= at) {
            return Some(job);
        }
        let mut recent = self.jobs.logs.recent.iter().rev();
        let of = |recent: &&Recent| {
            recent.nodes.contains(&node) && recent.began <= at && at <= recent.ended + SLACK
        };
        recent.find(of).map(|recent| recent.job)
    }

    /// Appends lines to the log of a job, if it is not longer than `most` bytes then.
    fn append_log(&mut self, job: JobId, text: String, lines: u64, most: u64) {
        let file = SpoolFile::log(job);
        let offset = self.jobs.files.len(file).unwrap_or(0);
        let end = offset + text.len() as u64;
        let is_full = end > most
            || self.jobs.logs.waiting + text.len() as u64 > WAITING
            || self.full_spool(text.len() as u64).is_some();
        let log = self.log_of(job);
        if is_full || log.broken {
            log.dropped += lines;
            return;
        }
        self.jobs.logs.waiting += text.len() as u64;
        self.jobs.files.set(file, end);
        let bytes = text.into_bytes();
        self.actions.push(Action::Spool(SpoolOrder::Append { file, run: job, offset, bytes }));
    }

    /// Returns the log of a job whose lines may come.
    fn log_of(&mut self, job: JobId) -> &mut JobLog {
        let stored = self.jobs.files.len(SpoolFile::log(job)).unwrap_or(0);
        let new = || JobLog { stored, dropped: 0, broken: false };
        self.jobs.logs.open.entry(job).or_insert_with(new)
    }

    /// Handles the report that lines were written.
    pub(super) fn log_written(&mut self, job: JobId, end: u64) {
        self.jobs.logs.settle(job, end);
    }

    /// Handles the report that lines could not be written. The job goes on.
    pub(super) fn log_lost(&mut self, job: JobId, reason: &str) {
        let len = self.jobs.files.len(SpoolFile::log(job)).unwrap_or(0);
        if let Some(log) = self.jobs.logs.settle(job, len)
            && !std::mem::replace(&mut log.broken, true)
        {
            self.log(format!("job {}: its log cannot be stored: {reason}", job.0));
        }
    }

    /// Ends the log of a job's nodes: their last lines are kept even if the log was too long.
    pub(super) fn end_log(&mut self, job: &Job) {
        for part in &job.parts {
            self.keep_last_lines(job.first, part);
        }
        self.parts_are_over(job.first, job.parts.iter().map(|part| part.node).collect(), job.began);
    }

    /// Notes the end of parts of a job, whose last lines may still come.
    pub(super) fn parts_are_over(&mut self, job: JobId, nodes: BTreeSet<NodeId>, began: Instant) {
        self.jobs.logs.recent.push_back(Recent { job, nodes, began, ended: self.now });
    }

    /// Handles the end of a member: its job's log has its last lines, and the reason.
    pub(in super::super) fn log_end_of(&mut self, node: NodeId, reason: &str) {
        let now = self.now;
        let Some(id) = self.members.get(node).and_then(|live| live.job) else { return };
        let Some(job) = self.jobs.running.get(&id) else { return };
        let first = job.first;
        let Some(name) = job.parts.iter().find(|part| part.node == node).map(|part| part.name.clone()) else {
            return;
        };
        self.last_lines(first, node, &name);
        let mut text = String::new();
        self.write_line(
            &mut text,
            now,
            &printable(&name),
            (Severity::Error, &format!("the node is gone: {reason}")),
        );
        self.append_log(first, text, 1, HEAD + TAIL);
    }

    fn keep_last_lines(&mut self, job: JobId, part: &Part) {
        if self.members.get(part.node).is_some_and(|live| live.member.incarnation == part.incarnation) {
            self.last_lines(job, part.node, &part.name);
        }
    }

    /// Appends the last lines of a node, if its job's log lacks some.
    fn last_lines(&mut self, job: JobId, node: NodeId, name: &str) {
        let Some(dropped) =
            self.jobs.logs.open.get(&job).map(|log| log.dropped).filter(|dropped| *dropped > 0)
        else {
            return;
        };
        let Some(told) = self.told.nodes.get(&node) else { return };
        let (now, name, lines) = (self.now, printable(name), told.lines.clone());
        let mut text = format!("-- {dropped} lines are missing; the last lines of {name}:\n");
        for line in lines.iter().skip(lines.len().saturating_sub(LAST)) {
            let at = logged_at(self.told.nodes.get(&node), now, line.at_us);
            self.write_line(&mut text, at, &name, (line.severity, &line.text));
        }
        self.append_log(job, text, 0, HEAD + TAIL);
    }

    /// Forgets the logs whose last lines have come.
    pub(super) fn expire_logs(&mut self) {
        let over = |recent: &mut Recent| recent.ended + LATE <= self.now;
        let mut some = false;
        while self.jobs.logs.recent.pop_front_if(over).is_some() {
            some = true;
        }
        if !some {
            return;
        }
        let gone: Vec<JobId> =
            self.jobs.logs.open.keys().copied().filter(|job| !self.may_log(*job)).collect();
        for job in gone {
            let len = self.jobs.files.len(SpoolFile::log(job)).unwrap_or(0);
            self.jobs.logs.settle(job, len);
            self.jobs.logs.open.remove(&job);
        }
    }

    /// Returns true if lines of a job, named by its first number, may still come.
    fn may_log(&self, job: JobId) -> bool {
        let jobs = &self.jobs;
        jobs.waiting.iter().any(|waiting| waiting.number == job)
            || jobs.running.values().any(|running| running.first == job)
            || jobs.ending.values().any(|ending| ending.first == job)
            || jobs.logs.recent.iter().any(|recent| recent.job == job)
    }

    /// Handles a client that reads the log of a job from `offset` on.
    pub(in super::super) fn tell_log(&mut self, conn: ConnId, job: JobId, offset: u64) {
        if self.jobs.fetches.contains_key(&conn) {
            return self.fail_client(conn, "this connection already waits for bytes of a job".into());
        }
        let running = self.jobs.running.iter().find(|(id, running)| **id == job || running.first == job);
        let first = running.map_or(job, |(_, running)| running.first);
        let open = self.may_log(first);
        let ended = self.history.get(first);
        if !open && ended.is_none() {
            return self.refuse_client(conn, Refusal::NotFound, format!("there is no job {}", job.0));
        }
        if ended.is_some_and(|ended| ended.expired) {
            return self.show_job(conn, first);
        }
        let file = SpoolFile::log(first);
        let len = self.jobs.files.len(file).unwrap_or(0);
        let end = self.jobs.logs.open.get(&first).map_or(len, |log| log.stored.min(len));
        if offset >= end {
            return self.tell_client(conn, ToClient::JobLog { bytes: Vec::new(), open });
        }
        let (reader, len) = (SpoolReader::Client(conn), usize::try_from(READ.min(end - offset)).unwrap_or(0));
        self.jobs.fetches.insert(conn, Fetch(Fetched::Log));
        self.actions.push(Action::Spool(SpoolOrder::Read { file, reader, offset, len }));
    }
}
