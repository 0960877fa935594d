//! Measures LITE on this cluster: latency and throughput of its operations between the nodes of rank 0 and
//! rank 1.
//!
//! The output is one tab-separated line per measurement: its name, payload bytes, samples, median and 99th
//! percentile of the latency in nanoseconds, and MB/s (10^6 bytes; `-` for a latency measurement). The job
//! accepts the number of samples, and one payload size, which is then the only one.
//!
//! # Neighbours
//! [`runtime`] starts the job, [`lite`] is what it measures, and `cargo xtask bench` prints the
//! figures.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod away;
mod measure;
mod paced;
mod ping_pong;
mod progress;
mod qos;
mod remote;

pub use away::Away;
pub use paced::Paced;
pub use progress::Progress;
pub use qos::Qos;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;
use lite::{Lite, Lmr, Permissions};
use measure::Row;
use proto::{AppManifest, CutRule, JobReport, JobStart};
use runtime::{App, Arg, BoxFuture, JobContext, JobError, Syntax};

/// The length of the region at rank 1 that rank 0 accesses, in bytes.
const REGION: u64 = 1 << 20;
/// Payload sizes, in bytes.
const SIZES: [usize; 6] = [8, 64, 512, 4096, 16384, 65536];
/// The deadline of one operation.
const DEADLINE: Duration = Duration::from_secs(10);

/// Returns all applications that measure.
#[must_use]
pub fn apps() -> Vec<Box<dyn App>> {
    vec![Box::new(Away), Box::new(Bench), Box::new(Paced), Box::new(Progress), Box::new(Qos)]
}

/// The name of the argument of [`samples`].
const SAMPLES: &str = "SAMPLES";
/// The name of the argument of [`sizes`].
const SIZE: &str = "size";
const SYNTAX: Syntax = Syntax {
    name: "bench",
    about: "measures LITE between two nodes",
    args: &[Arg::optional_word(SAMPLES), Arg::optional(SIZE, "BYTES")],
};

/// The benchmark application.
#[derive(Debug)]
pub struct Bench;

impl App for Bench {
    fn manifest(&self) -> AppManifest {
        SYNTAX.manifest(CutRule::Anywhere)
    }

    fn memory_needed(&self, _start: &JobStart) -> u64 {
        8 << 20
    }

    fn check(&self, start: &JobStart) -> Result<(), JobError> {
        if start.nodes.len() < 2 {
            return Err(JobError::Refused(SYNTAX.complaint("want two nodes")));
        }
        samples(start, &SYNTAX)?;
        sizes(start).map(drop)
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        alloc::boxed::Box::pin(run(job))
    }
}

/// Returns the number of samples that the arguments ask for.
fn samples(start: &JobStart, syntax: &Syntax) -> Result<usize, JobError> {
    let samples = syntax.read(&start.args).and_then(|args| args.number(SAMPLES, 1..=1_000_000));
    Ok(samples.map_err(JobError::Refused)?.unwrap_or(200))
}

/// Returns the payload sizes that the arguments ask for, in bytes.
fn sizes(start: &JobStart) -> Result<Vec<usize>, JobError> {
    let known = SIZES.map(|size| (size.to_string(), size));
    let known: Vec<_> = known.iter().map(|(text, size)| (text.as_str(), *size)).collect();
    let size = SYNTAX.read(&start.args).and_then(|args| args.one_of(SIZE, &known));
    Ok(size.map_err(JobError::Refused)?.map_or_else(|| SIZES.into(), |size| vec![size]))
}

async fn run(job: JobContext) -> Result<JobReport, JobError> {
    let samples = samples(job.start(), &SYNTAX)?;
    let sizes = sizes(job.start())?;
    let rank = job.rank();
    if rank > 1 {
        job.barrier("end").await?;
        return Ok(JobReport::default());
    }
    // Each of the two nodes has a region that the other writes.
    let mine = job.alloc(REGION).await?;
    job.publish(&mine, &format!("bench{rank}")).await?;
    let lite = job.lite().with_deadline(DEADLINE);
    let theirs = map(&lite, &job, 1 - rank).await?;
    let server = remote::serve(&job)?;

    ping_pong::run(&job, &mine.lmr, &theirs, samples).await?.report(&job).await?;
    if rank == 0 {
        let peer = job.nodes()[1];
        for size in sizes {
            for row in remote::measure(&job, &lite, peer, &theirs, size, samples).await? {
                row.report(&job).await?;
            }
        }
        remote::fetch_add(&job, &theirs, samples).await?.report(&job).await?;
    }
    job.barrier("end").await?;
    drop(server);
    Ok(JobReport::default())
}

/// Maps the region of the node of rank `rank`.
async fn map(lite: &Lite, job: &JobContext, rank: usize) -> Result<Lmr, JobError> {
    map_of(lite, job, &format!("bench{rank}")).await
}

/// Maps the region that a node of this job has published as `name`.
async fn map_of(lite: &Lite, job: &JobContext, name: &str) -> Result<Lmr, JobError> {
    let name = format!("job/{}/{name}", job.id().0);
    lite.map_wait(&name, Permissions::READ | Permissions::WRITE | Permissions::ATOMIC).await.map_err(failed)
}

/// Converts an error of LITE: any error ends the measurement.
fn failed(error: lite::Error) -> JobError {
    JobError::Lite { during: "measuring", error }
}

impl Row {
    /// Appends the line to the job's output, on rank 0.
    async fn report(self, job: &JobContext) -> Result<(), JobError> {
        if job.rank() != 0 {
            return Ok(());
        }
        let mut output = job.output();
        output.write(self.to_string().as_bytes()).await?;
        output.finish().await
    }
}
