//! Shows that the drain of a node disturbs no operation: all nodes of the job use a region on a node outside
//! of the job, first quietly, then until the region is on another node, and for a moment longer. They count
//! the operations that fail, and measure the longest.

use crate::{DEADLINE, failed};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString;
use core::time::Duration;
use lite::{Error, Lite, Lmr, NodeId, Permissions};
use platform::Instant;
use proto::{AppManifest, CutRule, JobReport, JobStart};
use runtime::{App, Arg, BoxFuture, JobContext, JobError, Syntax};

/// The names of the arguments.
const NODE: &str = "NODE";
const MIB: &str = "MIB";
const SECONDS: &str = "SECONDS";
const SYNTAX: Syntax = Syntax {
    name: "away",
    about: "uses a region of another node until that node has been drained",
    args: &[Arg::word(NODE), Arg::word(MIB), Arg::word(SECONDS)],
};

/// The time for which the region is used before the node may be drained, and after it has left the node.
const QUIET: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(1);
/// The time that the allocation and the first map may take.
const SET_UP: Duration = Duration::from_secs(120);
/// The pause between two rounds of operations.
const PAUSE: Duration = Duration::from_millis(1);
/// The bytes of a write and of a read.
const SLOT: usize = 4096;
/// The distance between two marks in the region, in bytes. Each node of the job has a slot behind each mark.
const STEP: u64 = 1 << 20;
/// The line of the log of rank 0 when the node may be drained.
const READY: &str = "away: the region is in use";

/// The application. It takes three arguments: the number of the node that has the region, the length of the
/// region in MiB, and the seconds in which the region must have left the node. The counts of its report are
/// the operations and the longest of them, in microseconds, before the node may be drained (`quiet`,
/// `quiet_longest_us`) and from then on (`operations`, `longest_us`), those that failed (`failed`), and the
/// bytes or words that are not as they were written (`wrong`).
#[derive(Debug)]
pub struct Away;

impl App for Away {
    fn manifest(&self) -> AppManifest {
        SYNTAX.manifest(CutRule::Anywhere)
    }

    fn memory_needed(&self, _start: &JobStart) -> u64 {
        1 << 20
    }

    fn check(&self, start: &JobStart) -> Result<(), JobError> {
        let Wish { node, .. } = Wish::of(start)?;
        match start.nodes.contains(&node) {
            true => Err(JobError::Refused(SYNTAX.complaint("the node takes part in the job"))),
            false => Ok(()),
        }
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(run(job))
    }
}

/// The arguments.
struct Wish {
    node: NodeId,
    len: u64,
    limit: Duration,
}

impl Wish {
    fn of(start: &JobStart) -> Result<Self, JobError> {
        let read = || {
            let args = SYNTAX.read(&start.args)?;
            let (node, mib) = (args.number(NODE, 1..=4095)?, args.number(MIB, 1..=1 << 20)?);
            let seconds = args.number(SECONDS, 1..=86_400)?;
            // All are there, because the syntax requires them.
            Ok(Self {
                node: NodeId(u16::try_from(node.unwrap_or(1)).unwrap_or(u16::MAX)),
                len: mib.unwrap_or(1) << 20,
                limit: Duration::from_secs(seconds.unwrap_or(1)),
            })
        };
        read().map_err(JobError::Refused)
    }
}

/// The operations of a phase.
#[derive(Default)]
struct Seen {
    operations: u64,
    longest: Duration,
    failed: u64,
    wrong: u64,
}

impl Seen {
    /// Counts an operation that began at `begun` and ends now. Returns its result, if it has not failed.
    fn note<T>(&mut self, begun: Instant, now: Instant, result: Result<T, Error>) -> Option<T> {
        self.operations += 1;
        self.longest = self.longest.max(now - begun);
        self.failed += u64::from(result.is_err());
        result.ok()
    }
}

/// The use of the region by one node.
struct User<'a> {
    job: &'a JobContext,
    lite: &'a Lite,
    lmr: &'a Lmr,
    len: u64,
    round: u64,
    /// The additions to this node's word.
    added: u64,
}

impl User<'_> {
    /// Writes and reads this node's slot behind one of the marks, and adds to this node's word.
    async fn round(&mut self, seen: &mut Seen) {
        self.round += 1;
        let rank = self.job.rank() as u64;
        // The distance of two rounds has no factor in common with the number of marks that is a power of two.
        let mark = (self.round * 389 + rank) % (self.len / STEP) * STEP;
        let at = mark + (1 + rank) * SLOT as u64;
        let data = [self.round as u8; SLOT];
        let begun = self.job.now();
        let written = self.lmr.write(at, &data).await;
        seen.note(begun, self.job.now(), written);
        let mut got = [0; SLOT];
        let begun = self.job.now();
        let read = self.lmr.read(at, &mut got).await;
        if seen.note(begun, self.job.now(), read).is_some() {
            seen.wrong += u64::from(got != data);
        }
        let begun = self.job.now();
        let added = self.lmr.fetch_add(8 + rank * 8, 1).await;
        if let Some(before) = seen.note(begun, self.job.now(), added) {
            seen.wrong += u64::from(before != self.added);
            self.added += 1;
        }
        self.lite.sleep(PAUSE).await;
    }
}

async fn run(job: JobContext) -> Result<JobReport, JobError> {
    let Wish { node, len, limit } = Wish::of(job.start())?;
    let rank = job.rank();
    let (lite, patient) = (job.lite().with_deadline(DEADLINE), job.lite().with_deadline(SET_UP));
    let name = format!("away/{}", job.id().0);
    let lmr = if rank == 0 {
        let lmr = patient.alloc(node, len, Permissions::all()).await.map_err(failed)?;
        for mark in (0..len).step_by(STEP as usize) {
            lmr.write(mark, &mark.to_ne_bytes()).await.map_err(failed)?;
        }
        lmr.publish(&name).await.map_err(failed)?;
        lmr
    } else {
        patient.map_wait(&name, Permissions::all()).await.map_err(failed)?
    };
    let lmr = lmr.with_deadline(DEADLINE);
    let mut user = User { job: &job, lite: &lite, lmr: &lmr, len, round: 0, added: 0 };
    let (mut quiet, mut seen) = (Seen::default(), Seen::default());
    // The first operation opens the connection.
    user.round(&mut Seen::default()).await;
    job.barrier("begin").await?;
    let end = job.now() + QUIET;
    while job.now() < end {
        user.round(&mut quiet).await;
    }
    if rank == 0 {
        log::info!("{READY}");
    }
    let late = job.now() + limit;
    while lmr.node() == node || lmr.owner() == node {
        user.round(&mut seen).await;
        if job.now() >= late {
            let here = format!("{} MiB are on {node} after {} s", len >> 20, limit.as_secs());
            return Err(JobError::Refused(here));
        }
    }
    let end = job.now() + AFTER;
    while job.now() < end {
        user.round(&mut seen).await;
    }
    job.barrier("end").await?;
    if rank == 0 {
        for mark in (0..len).step_by(STEP as usize) {
            let mut got = [0; 8];
            lmr.read(mark, &mut got).await.map_err(failed)?;
            seen.wrong += u64::from(got != mark.to_ne_bytes());
        }
    }
    job.barrier("checked").await?;
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let counts = [
        ("quiet", quiet.operations),
        ("quiet_longest_us", us(quiet.longest)),
        ("operations", seen.operations),
        ("longest_us", us(seen.longest)),
        ("failed", quiet.failed + seen.failed),
        ("wrong", quiet.wrong + seen.wrong),
    ];
    Ok(JobReport {
        counts: counts.map(|(name, count)| (name.to_string(), count)).into(),
        ..JobReport::default()
    })
}
