//! The phases of the job on one node.

use crate::{Args, entries};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;
use litelog::{AppendError, Log, LogError, LogOptions, Position, ReadError, Record, Writer};
use platform::Instant;
use runtime::{Collective, JobContext, JobError, Reduce};
use twox_hash::XxHash3_64;

/// The length of a segment, in bytes.
pub(crate) const SEGMENT: u64 = 1 << 20;
/// The length of a slot, which positions count, in bytes.
const SLOT: u64 = 64;
/// The longest time of an operation of the log.
const DEADLINE: Duration = Duration::from_secs(60);
/// The most of its own records that a node reads one by one.
const MOST_READ: usize = 1000;
/// The number of commits after which a node reports its progress.
const STEP: u64 = 256;
/// The room for a message of each node, in bytes.
const ROOM: usize = 4000;

/// Returns the bytes that a commit takes in the log.
pub(crate) fn frame_bytes(args: &Args) -> u64 {
    (32 + args.entries * (4 + args.bytes)).next_multiple_of(64)
}

/// The duration of each phase in microseconds, and the end of the latest.
pub(crate) struct Times {
    last: Instant,
    pub(crate) report: Vec<(String, u64)>,
}

impl Times {
    pub(crate) fn begin(job: &JobContext) -> Self {
        Self { last: job.now(), report: Vec::new() }
    }

    pub(crate) fn tick(&mut self, job: &JobContext, phase: &str) {
        let now = job.now();
        let us = u64::try_from((now - self.last).as_micros()).unwrap_or(u64::MAX);
        self.report.push((phase.to_string(), us));
        self.last = now;
    }
}

/// The result of a scan.
pub(crate) struct Scanned {
    /// The number of records.
    pub(crate) records: u64,
    /// The position of the record in the middle.
    pub(crate) middle: Position,
}

/// A node of the job and its handles of the log.
pub(crate) struct Node<'a> {
    job: &'a JobContext,
    args: Args,
    log: Log,
    writer: Writer,
    group: Collective,
}

impl<'a> Node<'a> {
    /// Makes the log on rank 0, opens it on all others, and registers a writer.
    pub(crate) async fn open(job: &'a JobContext, args: Args) -> Result<Self, JobError> {
        let lite = job.lite().with_deadline(DEADLINE);
        let name = format!("job-{}", job.id().0);
        let nodes = job.nodes().len();
        let group = job.collective(&vec![ROOM; nodes]).await?;
        let log = if job.rank() == 0 {
            let options =
                LogOptions { segment: SEGMENT, writers: nodes.clamp(1, 64), ..LogOptions::default() };
            let made = Log::create(&lite, &name, job.nodes(), options).await;
            job.barrier("made").await?;
            made
        } else {
            job.barrier("made").await?;
            Log::open(&lite, &name).await
        };
        let log = log.map_err(of_log("opening the log"))?;
        let writer = log.writer().await.map_err(of_log("opening the log"))?;
        Ok(Self { job, args, log, writer, group })
    }

    /// Makes a complaint of this node about what it has read.
    fn wrong(&self, what: &str) -> JobError {
        JobError::Refused(format!("rank {}: {what}", self.job.rank()))
    }

    /// Appends the commits of this node from several tasks at once. Returns their positions.
    pub(crate) async fn append(&self) -> Result<Vec<Position>, JobError> {
        let (args, rank) = (self.args, self.job.rank() as u64);
        let tasks: Vec<_> = (0..args.tasks)
            .map(|task| {
                let (job, writer) = (self.job.clone(), self.writer.clone());
                let of_this_task = (task..args.commits).step_by(args.tasks as usize);
                self.job.spawn("append", async move {
                    let mut places = Vec::new();
                    for number in of_this_task {
                        places.push(commit(&writer, args, rank, number).await?);
                        if number % STEP == 0 {
                            job.progress("append", number, args.commits).await?;
                        }
                    }
                    Ok::<_, JobError>(places)
                })
            })
            .collect();
        let mut places = Vec::new();
        for task in tasks {
            places.extend(task.await??);
        }
        Ok(places)
    }

    /// Reads some of this node's own records by their positions.
    pub(crate) async fn read(&self, places: &[Position]) -> Result<(), JobError> {
        for place in places.iter().step_by(places.len().div_ceil(MOST_READ).max(1)) {
            let record = self.log.read(*place).await.map_err(of_read("reading a record"))?;
            match self.check(&record) {
                Some((rank, _)) if rank == self.job.rank() as u64 => {}
                _ => return Err(self.wrong(&format!("another record is at {place}"))),
            }
        }
        self.job.barrier("read").await
    }

    /// Returns the rank and the number of a record, if it is as it was made.
    fn check(&self, record: &Record) -> Option<(u64, u64)> {
        let (mut of, mut count) = (None, 0);
        for entry in record.entries() {
            let parsed = entries::parse(entry, count, self.args.bytes as usize)?;
            if *of.get_or_insert(parsed) != parsed {
                return None;
            }
            count += 1;
        }
        of.filter(|_| count == self.args.entries)
    }

    /// Scans the log. Each commit of each node must be there once, and those of one task in order. All nodes
    /// must see the same.
    pub(crate) async fn scan(&mut self) -> Result<Scanned, JobError> {
        let (nodes, args) = (self.job.nodes().len() as u64, self.args);
        // The next number of each task, by rank and task.
        let mut next: Vec<u64> = (0..nodes).flat_map(|_| 0..args.tasks).collect();
        let all = nodes * args.commits;
        let (mut digest, mut records, mut middle) = (0, 0, Position::START);
        let mut scan = self.log.scan(Position::START);
        while let Some(record) = scan.next().await.map_err(of_read("scanning the log"))? {
            let (rank, number) = self.check(&record).ok_or_else(|| self.wrong("a record is damaged"))?;
            let expected = next.get_mut((rank * args.tasks + number % args.tasks) as usize);
            let in_order =
                expected.is_some_and(|next| core::mem::replace(next, number + args.tasks) == number);
            if !in_order || number >= args.commits {
                let place = record.position();
                return Err(self.wrong(&format!("commit {number} of rank {rank} is at {place} unexpectedly")));
            }
            if records == all / 2 {
                middle = record.position();
            }
            digest = XxHash3_64::oneshot_with_seed(digest, &record.position().to_u64().to_le_bytes());
            for entry in record.entries() {
                digest = XxHash3_64::oneshot_with_seed(digest, entry);
            }
            records += 1;
            if records % STEP == 0 {
                self.job.progress("scan", records, all).await?;
            }
        }
        if records != all {
            return Err(self.wrong(&format!("the scan has {records} records and not {all}")));
        }
        let least = self.group.all_reduce(&[digest], Reduce::Min).await?;
        let greatest = self.group.all_reduce(&[digest], Reduce::Max).await?;
        if least != greatest {
            return Err(self.wrong("the scans of two nodes differ"));
        }
        Ok(Scanned { records, middle })
    }

    /// Follows the log: each node appends one record when it has seen those of the ranks below its own.
    pub(crate) async fn follow(&self) -> Result<(), JobError> {
        let tail = self.log.tail().await.map_err(of_log("reading the tail"))?;
        self.job.barrier("tail").await?;
        let mut scan = self.log.scan(tail);
        for rank in 0..self.job.nodes().len() as u64 {
            if rank == self.job.rank() as u64 {
                commit(&self.writer, self.args, rank, self.args.commits).await?;
            }
            let record = scan.follow().await.map_err(of_read("following the log"))?;
            if self.check(&record) != Some((rank, self.args.commits)) {
                return Err(self.wrong(&format!("the record of rank {rank} does not follow")));
            }
        }
        self.job.barrier("followed").await
    }

    /// Truncates the log on the last rank. The records below `middle` are gone for all nodes, and the others
    /// are there.
    pub(crate) async fn truncate(&self, middle: Position) -> Result<(), JobError> {
        let nodes = self.job.nodes().len();
        if self.job.rank() + 1 == nodes {
            self.log.truncate(middle).await.map_err(of_log("truncating the log"))?;
        }
        self.job.barrier("truncated").await?;
        if self.log.head().await.map_err(of_log("reading the head"))? != middle {
            return Err(self.wrong("the log does not begin where it was truncated"));
        }
        // Only whole segments are freed.
        let is_freed = middle.to_u64() >= SEGMENT / SLOT;
        if is_freed && self.log.read(Position::START).await != Err(ReadError::Truncated) {
            return Err(self.wrong("the first record is there after its segment was freed"));
        }
        let all = nodes as u64 * (self.args.commits + 1);
        let expected = all - nodes as u64 * self.args.commits / 2;
        let mut records = 0;
        let mut scan = self.log.scan(middle);
        while scan.next().await.map_err(of_read("scanning the log"))?.is_some() {
            records += 1;
        }
        if records != expected {
            return Err(self.wrong(&format!("{records} records and not {expected} are left")));
        }
        self.job.barrier("scanned").await
    }

    /// Ends the log.
    pub(crate) async fn close(self) -> Result<(), JobError> {
        let Self { job, log, writer, group, .. } = self;
        drop(writer);
        group.close().await?;
        if job.rank() == 0 {
            log.destroy().await.map_err(of_log("ending the log"))?;
        }
        job.barrier("ended").await
    }
}

/// Commits the entries of a number. Returns their position.
async fn commit(writer: &Writer, args: Args, rank: u64, number: u64) -> Result<Position, JobError> {
    let made: Vec<_> =
        (0..args.entries).map(|index| entries::make(rank, number, index, args.bytes as usize)).collect();
    let made: Vec<&[u8]> = made.iter().map(Vec::as_slice).collect();
    writer.commit(&made).await.map_err(|error| match error {
        AppendError::NotAppended(error) => JobError::Lite { during: "appending", error },
        other => JobError::Refused(format!("appending: {other}")),
    })
}

fn of_log(during: &'static str) -> impl Fn(LogError) -> JobError {
    move |error| match error {
        LogError::Lite(error) => JobError::Lite { during, error },
        other => JobError::Refused(format!("{during}: {other}")),
    }
}

fn of_read(during: &'static str) -> impl Fn(ReadError) -> JobError {
    move |error| match error {
        ReadError::Lite(error) => JobError::Lite { during, error },
        other => JobError::Refused(format!("{during}: {other}")),
    }
}
