//! LITE-Log on appliances: all nodes append to one log, read it, follow it and truncate it.

use super::misuse::refused;
use super::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Result, ensure};
use lab::tool;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// The longest silence of a run on a busy host.
const LIMIT: Duration = Duration::from_secs(1200);

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<Outcome>| Case::new(format!("log::{name}"), check);
    vec![
        case("three-nodes", |log| run((3, 1, "softroce"), &["commits=300"], log)),
        case("wrong-argument", wrong_argument),
        case("large-commits", |log| {
            run((2, 2, "softroce"), &["commits=400", "entries=16", "bytes=4000", "tasks=8"], log)
        })
        .full_if(true),
        case("cards", |log| run((3, 2, "cx3"), &["commits=1000"], log)).full_if(true),
    ]
}

/// Runs the job, which checks what it reads, and holds its report against its output.
fn run((nodes, cpus, nic): (u16, u32, &str), args: &[&str], log: &Path) -> Result<Outcome> {
    let dir = tempfile::tempdir()?;
    let [output, figures] = ["output", "figures"].map(|name| dir.path().join(name));
    let mut command = xtask();
    command.args(["run", "--app", "log", "--nic", nic, "--nodes", &nodes.to_string()]);
    command.args(["--cpus", &cpus.to_string(), "--output"]).arg(&output).arg("--json").arg(&figures);
    for arg in args {
        command.args(["--arg", arg]);
    }
    tool::run_ok(&mut command, log, LIMIT)?;
    let text = std::fs::read_to_string(output)?;
    let count =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    ensure!(count("nodes\t") == Some(u64::from(nodes)), "the output is {text:?}");
    let commits = count("commits\t").unwrap_or(0);
    ensure!(commits > 0 && count("scanned by each node\t") == Some(commits), "the output is {text:?}");
    let figures: Value = serde_json::from_slice(&std::fs::read(figures)?)?;
    let reports = figures.get("reports").and_then(Value::as_array).into_iter().flatten();
    let atomics: u64 = reports.filter_map(|report| report.pointer("/used/atomics")?.as_u64()).sum();
    // One fetch-add for each commit, and a few for the log's own words and the ends of segments.
    ensure!(
        (commits..commits + commits / 10 + 100).contains(&atomics),
        "{commits} commits, {atomics} atomics"
    );
    Ok(Outcome::Passed)
}

/// Runs the job with wrong arguments.
fn wrong_argument(log: &Path) -> Result<Outcome> {
    let args = ["--nodes", "1", "--app", "log", "--arg", "bytes=8"];
    refused(&args, "log: bytes=8: want a number from 16 to 65536; usage: [commits=", log)?;
    Ok(Outcome::Passed)
}
