//! Calls with pauses between them: what a node's processor does meanwhile is measured from outside, by
//! `cargo xtask bench figures --figure waiting`.

use crate::measure::Row;
use crate::{DEADLINE, failed, remote};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;
use proto::{AppManifest, CutRule, JobReport, JobStart};
use runtime::{App, Arg, BoxFuture, JobContext, JobError, Syntax};

/// The payload of a call and of its reply.
const PAYLOAD: [u8; 64] = [7; 64];

/// The names of the arguments.
const PAUSE: &str = "PAUSE_US";
const TIME: &str = "TIME_MS";
const SYNTAX: Syntax = Syntax {
    name: "paced",
    about: "calls with pauses between them",
    args: &[Arg::word(PAUSE), Arg::word(TIME)],
};

/// The application. It takes two arguments: the pause between two calls of rank 0 to rank 1 in microseconds,
/// and the time for which it calls, in milliseconds. Its output is one line in the format of
/// [`crate::Bench`].
#[derive(Debug)]
pub struct Paced;

impl App for Paced {
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
        times(start).map(drop)
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(run(job))
    }
}

/// Returns the pause and the time for which calls are made.
fn times(start: &JobStart) -> Result<(Duration, Duration), JobError> {
    let read = || {
        let args = SYNTAX.read(&start.args)?;
        let (pause, time) = (args.number(PAUSE, 0..=1_000_000)?, args.number(TIME, 1..=600_000)?);
        // Both are there, because the syntax requires them.
        Ok((Duration::from_micros(pause.unwrap_or(0)), Duration::from_millis(time.unwrap_or(1))))
    };
    read().map_err(JobError::Refused)
}

async fn run(job: JobContext) -> Result<JobReport, JobError> {
    let (pause, time) = times(job.start())?;
    let server = remote::serve(&job)?;
    job.barrier("ready").await?;
    if job.rank() == 0 {
        let lite = job.lite().with_deadline(DEADLINE);
        let peer = job.nodes()[1];
        let mut taken = Vec::new();
        let end = job.now() + time;
        while job.now() < end {
            let begin = job.now();
            lite.call_into(peer, remote::ECHO, &PAYLOAD, &mut [0; PAYLOAD.len()]).await.map_err(failed)?;
            taken.push(u64::try_from((job.now() - begin).as_nanos()).unwrap_or(u64::MAX));
            if pause > Duration::ZERO {
                lite.sleep(pause).await;
            }
        }
        Row::latency("paced_call", PAYLOAD.len(), taken).report(&job).await?;
    }
    job.barrier("end").await?;
    drop(server);
    Ok(JobReport::default())
}
