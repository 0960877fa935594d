//! The suite as an application of an appliance.

use crate::CASES;
use crate::run::{Case, Session, Verdict};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use proto::{AppManifest, CutRule, JobReport, JobStart};
use runtime::{App, BoxFuture, JobContext, JobError};

/// The memory per node for the largest regions of the cases, in bytes.
const MEMORY: u64 = 160 << 20;

/// The application. It runs the cases whose names contain one of its arguments, or all cases, on at least
/// three nodes. The output is in the format of the Test Anything Protocol: `1..N`, and for each case `ok I -
/// NAME` or `not ok I - NAME # reason`.
#[derive(Debug)]
pub struct Suite;

impl App for Suite {
    fn manifest(&self) -> AppManifest {
        AppManifest {
            name: "semantics".to_string(),
            about: "tests LITE's calls against their specification".to_string(),
            cut: CutRule::Anywhere,
        }
    }

    fn memory_needed(&self, _start: &JobStart) -> u64 {
        MEMORY
    }

    fn check(&self, start: &JobStart) -> Result<(), JobError> {
        if start.nodes.len() < 3 {
            return Err(JobError::Refused("semantics needs at least three nodes".to_string()));
        }
        if chosen(start).is_empty() {
            return Err(JobError::Refused("semantics has no such case".to_string()));
        }
        Ok(())
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(run(job))
    }
}

fn chosen(start: &JobStart) -> Vec<Case> {
    let wanted = |case: &&Case| start.args.is_empty() || start.args.iter().any(|arg| case.name.contains(arg));
    CASES.iter().filter(wanted).copied().collect()
}

async fn run(job: JobContext) -> Result<JobReport, JobError> {
    let cases = chosen(job.start());
    let mut output = job.output();
    if job.rank() == 0 {
        output.write(format!("1..{}\n", cases.len()).as_bytes()).await?;
    }
    let (mut number, mut failed) = (0, 0);
    let lost = |error| JobError::Lite { during: "running the cases", error };
    let prefix = format!("semantics/{}", job.id().0);
    let mut session = Session::begin(job.lite(), job.nodes(), &prefix, &cases).await.map_err(lost)?;
    while let Some(verdict) = session.next().await.map_err(lost)? {
        number += 1;
        failed += u64::from(!verdict.failures.is_empty());
        if job.rank() == 0 {
            output.write(line(number, &verdict).as_bytes()).await?;
        }
    }
    if job.rank() == 0 {
        output.finish().await?;
    }
    let counts = [("cases", number), ("failed", failed)].map(|(name, count)| (name.to_string(), count));
    Ok(JobReport { counts: counts.into(), ..JobReport::default() })
}

fn line(number: u64, verdict: &Verdict) -> String {
    if verdict.failures.is_empty() {
        return format!("ok {number} - {}\n", verdict.name);
    }
    let reasons: Vec<_> = verdict
        .failures
        .iter()
        .map(|(rank, reason)| format!("rank {rank}: {}", reason.replace('\n', " ")))
        .collect();
    format!("not ok {number} - {} # {}\n", verdict.name, reasons.join("; "))
}
