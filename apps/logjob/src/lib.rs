//! The application `log`: all nodes append to one shared log at once, read what they have written, scan the
//! log, follow it and truncate it. Each node checks what it reads, and all nodes compare their scans.
//!
//! The output has one line for each count; it is the same for each run with the same arguments and nodes.
//! The report has the duration of each phase, and the operations of LITE.
//!
//! # Neighbours
//! [`litelog`] is the log, and [`runtime`] starts the job.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod entries;
mod phases;

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Write as _;
use phases::{Node, Times};
use proto::{AppManifest, CutRule, JobReport, JobStart};
use runtime::{App, Arg, BoxFuture, JobContext, JobError, Syntax};

/// The name and the arguments.
const SYNTAX: Syntax = Syntax {
    name: "log",
    about: "appends to a shared log on all nodes, then reads, follows and truncates it",
    args: &[
        Arg::optional("commits", "OF_EACH_NODE"),
        Arg::optional("entries", "OF_EACH_COMMIT"),
        Arg::optional("bytes", "OF_EACH_ENTRY"),
        Arg::optional("tasks", "OF_EACH_NODE"),
    ],
};
/// The most bytes of the entries of a commit. The longest frame has room for
/// as many and for the lengths of the entries.
const MOST_BYTES: u64 = 64 << 10;

/// The arguments of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Args {
    /// The number of commits of each node.
    pub(crate) commits: u64,
    /// The number of entries of a commit.
    pub(crate) entries: u64,
    /// The length of an entry, in bytes.
    pub(crate) bytes: u64,
    /// The number of tasks of a node that append at once.
    pub(crate) tasks: u64,
}

impl Args {
    fn read(args: &[String]) -> Result<Self, String> {
        let args = SYNTAX.read(args)?;
        let parsed = Self {
            commits: args.number("commits", 1..=10_000_000)?.unwrap_or(1000),
            entries: args.number("entries", 1..=1000)?.unwrap_or(1),
            bytes: args.number("bytes", 16..=MOST_BYTES)?.unwrap_or(16),
            tasks: args.number("tasks", 1..=64)?.unwrap_or(4),
        };
        if parsed.entries * parsed.bytes > MOST_BYTES {
            return Err(SYNTAX.complaint("a commit has at most 65536 bytes: entries= times bytes="));
        }
        Ok(parsed)
    }
}

/// Returns the applications of this crate.
#[must_use]
pub fn apps() -> Vec<Box<dyn App>> {
    vec![Box::new(LogJob)]
}

/// The application.
#[derive(Debug)]
pub struct LogJob;

impl App for LogJob {
    fn manifest(&self) -> AppManifest {
        SYNTAX.manifest(CutRule::Anywhere)
    }

    fn memory_needed(&self, start: &JobStart) -> u64 {
        let Ok(args) = Args::read(&start.args) else { return 0 };
        // The segments lie on all nodes in turn, so a node holds about as much as it appends. Its scan has
        // a note of eight bytes for each commit.
        phases::frame_bytes(&args) * args.commits + phases::SEGMENT * 2 + 8 * args.commits
    }

    fn check(&self, start: &JobStart) -> Result<(), JobError> {
        Args::read(&start.args).map(drop).map_err(JobError::Refused)
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(run(job))
    }
}

/// Runs the part of this node.
async fn run(job: JobContext) -> Result<JobReport, JobError> {
    let args = Args::read(&job.start().args).map_err(JobError::Refused)?;
    let mut times = Times::begin(&job);
    let mut node = Node::open(&job, args).await?;
    times.tick(&job, "open");
    let places = node.append().await?;
    job.barrier("appended").await?;
    times.tick(&job, "append");
    node.read(&places).await?;
    times.tick(&job, "read");
    let scanned = node.scan().await?;
    times.tick(&job, "scan");
    node.follow().await?;
    times.tick(&job, "follow");
    node.truncate(scanned.middle).await?;
    times.tick(&job, "truncate");
    node.close().await?;
    let nodes = job.nodes().len() as u64;
    let mut text = String::new();
    for (name, value) in [
        ("nodes", nodes),
        ("commits", nodes * args.commits),
        ("entries", nodes * args.commits * args.entries),
        ("bytes", nodes * args.commits * args.entries * args.bytes),
        ("scanned by each node", scanned.records),
        ("followed by each node", nodes),
    ] {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}\t{value}");
    }
    let part = if job.rank() == 0 { text } else { String::new() };
    job.output_in_order(part.into_bytes()).await?;
    let counts = vec![("commits".to_string(), args.commits), ("scanned".to_string(), scanned.records)];
    Ok(JobReport { counts, times_us: times.report, ..JobReport::default() })
}
