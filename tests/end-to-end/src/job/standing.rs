//! A cluster that stays: `cargo xtask cluster`.

use crate::job::inputs::{Input, Prepared, compare};
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::cargo::Profile;
use lab::{cargo, manager, tool};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The longest silence of a command, which may build.
const LIMIT: Duration = Duration::from_secs(600);
/// The longest time until a node has resumed.
const RESUMES: Duration = Duration::from_secs(30);
/// The name of the test's cluster, which does not disturb that of a developer.
const NAME: &str = "test";

pub(crate) fn cases() -> Vec<Case> {
    let stays = Case::new("cluster::stays-until-it-is-ended", |log| stays(log).map(|()| Outcome::Passed));
    vec![stays.runs(&["--bin", "lite-node"])]
}

/// Ends the cluster after a failure of the test.
struct Up;

impl Drop for Up {
    fn drop(&mut self) {
        // An error means that the test has ended the cluster.
        let _ = cluster(&["down"]).output();
    }
}

fn cluster(words: &[&str]) -> Command {
    let mut command = super::xtask();
    command.args(["cluster", "--name", NAME]).args(words);
    command
}

/// Starts an appliance and a Linux node, runs jobs on both, kills the manager between them, and ends all.
fn stays(log: &Path) -> Result<()> {
    let Prepared { input, expected } = Input::SmallText.prepared(log)?;
    let refused = tool::run(&mut cluster(&["status"]), log, LIMIT)?;
    ensure!(refused.output.contains("the cluster is not up"), "it says `{}`", refused.output.trim());
    // The program of the tests, because a build here would replace it by one without libibverbs.
    let program = cargo::built_for_tests("lite-node")?;
    let mut start = cluster(&["up", "--nodes", "1", "--linux", "1", "--lite-node"]);
    tool::run_ok(start.arg(&program), log, LIMIT)?;
    let up = Up;
    let again = tool::run(&mut cluster(&["up"]), log, LIMIT)?;
    ensure!(again.output.contains("is up already"), "it says `{}`", again.output.trim());
    let before = status("before", log)?;
    let names: Vec<_> = before["nodes"].as_array().into_iter().flatten().map(|node| &node["name"]).collect();
    ensure!(names.len() == 2 && names.iter().any(|name| *name == "linux0"), "the nodes are {names:?}");
    count(&input, &expected, log)?;
    // A node that is drained stays so when its manager is started again.
    let reason = ["drain", "linux0", "--reason", "a new fan"];
    tool::run_ok(&mut node(&before, &reason)?, log, LIMIT)?;
    let last = tool::run(&mut node(&before, &["drain", "node0"])?, log, LIMIT)?;
    ensure!(last.output.contains("node0 is the last node that takes jobs"), "it says `{}`", last.output);
    count(&input, &expected, log)?;
    let manager = before["manager_pid"].as_i64().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    kill_process(manager.context("a process")?, Signal::KILL)?;
    // The job waits until the nodes have resumed.
    let after = status("after", log)?;
    ensure!(state(&after, "linux0", log)? == "drained", "the drain was forgotten");
    tool::run_ok(&mut node(&after, &["undrain", "linux0"])?, log, LIMIT)?;
    // The node may not have resumed yet.
    let deadline = Instant::now() + RESUMES;
    while state(&after, "linux0", log)? != "ready" {
        ensure!(Instant::now() < deadline, "the drain was not undone");
        std::thread::sleep(Duration::from_millis(100));
    }
    count(&input, &expected, log)?;
    ensure!(before["manager_pid"] != after["manager_pid"], "the manager was not started again");
    for (key, node) in [("incarnation", 0), ("incarnation", 1), ("boot_id", 0), ("boot_id", 1)] {
        let [was, is] = [&before, &after].map(|status| &status["nodes"][node][key]);
        ensure!(was == is && !was.is_null(), "{key} of node {node} was {was}, and is {is}");
    }
    tool::run_ok(&mut cluster(&["down"]), log, LIMIT)?;
    drop(up);
    let process = after["manager_pid"].to_string();
    ensure!(!Path::new("/proc").join(process).exists(), "the manager still runs");
    Ok(())
}

/// Returns a command about nodes for the cluster's manager.
fn node(status: &Value, words: &[&str]) -> Result<Command> {
    let text = |key: &str| status[key].as_str().with_context(|| format!("the status has no {key}"));
    let mut command = Command::new(manager::build(Profile::Dev)?);
    command.arg("node").args(words).args(["--manager", text("manager")?, "--key-file", text("key_file")?]);
    Ok(command)
}

/// Returns the state of a node.
fn state(status: &Value, name: &str, log: &Path) -> Result<String> {
    let json = log.with_extension("node.json");
    let path = json.to_str().context("a path")?;
    tool::run_ok(&mut node(status, &["show", name, "--json", path])?, log, LIMIT)?;
    let shown: Value = serde_json::from_slice(&std::fs::read(&json)?)?;
    Ok(shown["state"].as_str().context("a state")?.to_owned())
}

/// Returns the state of the cluster.
fn status(when: &str, log: &Path) -> Result<Value> {
    let json = log.with_extension(format!("{when}.json"));
    let path = json.to_str().context("a path")?;
    tool::run_ok(&mut cluster(&["status", "--json", path]), log, LIMIT)?;
    Ok(serde_json::from_slice(&std::fs::read(&json)?)?)
}

/// Counts the words of a file on all nodes.
fn count(input: &Path, expected: &Path, log: &Path) -> Result<()> {
    let output = log.with_extension("out");
    let mut submit = cluster(&["submit", "--input"]);
    tool::run_ok(submit.arg(input).arg("--output").arg(&output), log, LIMIT)?;
    compare(expected, &output, log)
}
