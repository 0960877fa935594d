//! Shows that LITE's progress does not depend on applications: rank 1 computes for seconds without yielding,
//! and rank 0 reads its memory meanwhile. The reads continue, no connection fails, and rank 1 stays a member.

use crate::measure::Row;
use crate::{DEADLINE, failed, map};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use core::hint::black_box;
use core::time::Duration;
use proto::{AppManifest, CutRule, JobReport, JobStart};
use runtime::{App, Arg, BoxFuture, JobContext, JobError, Syntax};

/// The default time of computation, in seconds.
const SECONDS: u64 = 10;
/// Bytes of one read.
const SIZE: usize = 64;
/// The pause between two reads.
const PAUSE: Duration = Duration::from_millis(2);

const SYNTAX: Syntax = Syntax {
    name: "progress",
    about: "reads a node's memory while that node computes without yielding",
    args: &[Arg::optional_word("SECONDS")],
};

/// The application. It accepts one argument, the seconds to compute. Its output is one line in the format of
/// [`crate::Bench`].
#[derive(Debug)]
pub struct Progress;

impl App for Progress {
    fn manifest(&self) -> AppManifest {
        SYNTAX.manifest(CutRule::Anywhere)
    }

    fn memory_needed(&self, _start: &JobStart) -> u64 {
        1 << 20
    }

    fn check(&self, start: &JobStart) -> Result<(), JobError> {
        if start.nodes.len() != 2 {
            return Err(JobError::Refused(SYNTAX.complaint("want two nodes")));
        }
        seconds(start).map(drop)
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(run(job))
    }
}

/// Returns the time to compute.
fn seconds(start: &JobStart) -> Result<Duration, JobError> {
    let seconds = SYNTAX.read(&start.args).and_then(|args| args.number("SECONDS", 1..=600));
    Ok(Duration::from_secs(seconds.map_err(JobError::Refused)?.unwrap_or(SECONDS)))
}

async fn run(job: JobContext) -> Result<JobReport, JobError> {
    let span = seconds(job.start())?;
    let mine = job.alloc(SIZE as u64).await?;
    mine.lmr.write(0, &[0x5a; SIZE]).await.map_err(failed)?;
    job.publish(&mine, &format!("bench{}", job.rank())).await?;
    let lite = job.lite().with_deadline(DEADLINE);
    let theirs = map(&lite, &job, 1 - job.rank()).await?;
    // The connection must exist before the computation starts: setting it up takes a task of the other node.
    theirs.read(0, &mut [0; SIZE]).await.map_err(failed)?;
    job.barrier("begin").await?;
    let end = job.now() + span;
    let mut report = JobReport::default();
    if job.rank() == 0 {
        let mut taken = Vec::new();
        let mut bytes = vec![0; SIZE];
        while job.now() < end {
            let begin = job.now();
            theirs.read(0, &mut bytes).await.map_err(failed)?;
            taken.push(u64::try_from((job.now() - begin).as_nanos()).unwrap_or(u64::MAX));
            if bytes != [0x5a; SIZE] {
                return Err(JobError::Refused("a read returned other bytes than were written".to_string()));
            }
            lite.sleep(PAUSE).await;
        }
        report.counts.push(("reads".to_string(), taken.len() as u64));
        Row::latency("read_while_computing", SIZE, taken).report(&job).await?;
    } else {
        let mut sum = 1.0f64;
        let mut rounds = 0u64;
        while job.now() < end {
            for i in 0..1000u32 {
                sum = black_box(sum * 1.000_000_1 + f64::from(i) * 1e-9);
            }
            rounds += 1;
        }
        report.counts.push(("rounds".to_string(), rounds));
    }
    job.barrier("end").await?;
    Ok(report)
}
