//! Limits of a job's RDMA: the job moves no more than its limit allows, by its own report.

use super::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::tool;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// The longest time of a run on a busy host.
const LIMIT: Duration = Duration::from_secs(300);
/// The limit, in bytes per second: the flood of the application `qos` is far above it.
const RATE: u64 = 50_000_000;
/// The burst of the limit, in bytes: 10 ms of the rate.
const BURST: u64 = RATE / 100;
/// The longest operation of the application, in bytes. One may begin while the burst is not used up.
const LONGEST: u64 = 64 << 10;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("run::rdma-limit", |log| limited(log).map(|()| Outcome::Passed)),
        Case::new("run::no-rdma-limit", |log| unlimited(log).map(|()| Outcome::Passed)),
    ]
}

/// Runs the application `qos` with further options. Returns the resources that its nodes have used, by rank.
fn used(more: &[&str], log: &Path) -> Result<Vec<Value>> {
    let dir = tempfile::tempdir()?;
    let (input, json) = (dir.path().join("in"), dir.path().join("json"));
    std::fs::write(&input, "")?;
    let mut run = xtask();
    run.args(["run", "--nodes", "2", "--app", "qos", "--arg", "10"]).args(more);
    run.arg("--input").arg(&input).arg("--json").arg(&json);
    tool::run_ok(&mut run, log, LIMIT)?;
    let report: Value = serde_json::from_slice(&std::fs::read(&json)?)?;
    let parts = report["reports"].as_array().context("the reports of the nodes")?;
    Ok(parts.iter().map(|part| part["used"].clone()).collect())
}

fn limited(log: &Path) -> Result<()> {
    let rate = format!("{RATE}B/s");
    let used = used(&["--rdma-limit", &rate, "--rdma-priority", "low", "--rdma-outstanding", "4"], log)?;
    for (rank, used) in used.iter().enumerate() {
        let count = |name: &str| used[name].as_u64().with_context(|| format!("no {name} of rank {rank}"));
        let (bytes, us) = (count("bytes_limited")?, count("limited_us")?);
        let allowed = u128::from(RATE) * u128::from(us) / 1_000_000 + u128::from(BURST + LONGEST);
        ensure!(u128::from(bytes) <= allowed, "rank {rank} has moved {bytes} of {allowed} bytes: {used}");
    }
    let flood = used.first().context("rank 0")?;
    for name in ["limited", "limit_waits", "limit_waited_us"] {
        ensure!(flood[name].as_u64() > Some(0), "rank 0 has no {name}: {flood}");
    }
    ensure!(flood["bytes_limited"].as_u64() > Some(20 * LONGEST), "rank 0 has moved little: {flood}");
    Ok(())
}

fn unlimited(log: &Path) -> Result<()> {
    for used in used(&[], log)? {
        ensure!(used["limited"].is_null(), "a job without limits has an account: {used}");
    }
    Ok(())
}
