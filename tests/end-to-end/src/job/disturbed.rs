//! Tests of a disturbed run: it ends soon, names the reason, and leaves nothing behind.

use super::inputs::Input;
use super::misuse::one_error;
use crate::job::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, bail, ensure};
use lab::tool;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Text in the output of the manager's client once the nodes have started the job and input flows.
const JOB_RUNS: &str = "job 1 runs";
/// The longest time from the death of a node to the end of the run.
const BOUND: Duration = Duration::from_secs(60);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("nodes::killed-in-mid-run", |log| killed(log).map(|()| Outcome::Passed)),
        Case::new("nodes::interrupted-run-leaves-nothing", |log| interrupted(log).map(|()| Outcome::Passed)),
    ]
}

fn killed(log: &Path) -> Result<()> {
    disturbed(log, "node1", |run| kill_process(find_node(run, "node1")?, Signal::KILL).context("kill"))
}

fn interrupted(log: &Path) -> Result<()> {
    let terminate = |run| kill_process(process(run)?, Signal::TERM).context("kill");
    disturbed(log, "interrupted", terminate)
}

/// Disturbs a run, given its process id, while the job runs. The run must fail soon, its only error must
/// contain `says`, and it must leave no process and no output file.
fn disturbed(log: &Path, says: &str, disturb: impl FnOnce(u32) -> Result<()>) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [input, output] = ["in", "out"].map(|name| dir.path().join(name));
    // The input is large enough to last until the disturbance.
    Input::LargeText.write(&input)?;
    let file = File::create(log)?;
    let mut command = xtask();
    command.args(["run", "--nodes", "3"]).arg("--input").arg(&input).arg("--output").arg(&output);
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut child = qemu::die_with_this_thread(&mut command).spawn()?;
    wait_for(JOB_RUNS, log, &mut child)?;
    let started = children(child.id());
    ensure!(started.len() >= 4, "there are no three nodes and a manager: {started:?}");
    disturb(child.id())?;
    let status = tool::wait(&mut child, BOUND)?;
    let Some(status) = status else { bail!("the run went on for {} s", BOUND.as_secs()) };
    ensure!(!status.success(), "the run succeeded all the same");
    one_error(&std::fs::read_to_string(log)?, says)?;
    ensure!(!output.exists(), "there is an output file");
    let left: Vec<_> = started.into_iter().filter(|pid| runs(*pid)).collect();
    ensure!(left.is_empty(), "still running: {left:?}");
    Ok(())
}

/// Waits until a line of the run's output contains `text`.
pub(crate) fn wait_for(text: &str, log: &Path, child: &mut Child) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(600);
    while !std::fs::read_to_string(log)?.contains(text) {
        ensure!(child.try_wait()?.is_none(), "the run ended before it said `{text}`");
        ensure!(Instant::now() < deadline, "the run does not say `{text}`");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Returns the QEMU below process `parent` that is named `name`.
fn find_node(parent: u32, name: &str) -> Result<Pid> {
    let pid = children(parent).into_iter().find(|pid| named(*pid, name));
    process(pid.with_context(|| format!("no {name} runs"))?)
}

/// Returns true if a process is a QEMU whose name begins with `prefix`.
fn named(pid: u32, prefix: &str) -> bool {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = arguments.split(|b| *b == 0);
    words.any(|w| w == b"-name") && words.next().is_some_and(|name| name.starts_with(prefix.as_bytes()))
}

fn process(pid: u32) -> Result<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw).context("no such process id")
}

/// Returns the processes whose parent is `parent`.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|p| p.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

/// Returns true if a process exists and is a virtual machine or a manager (its id may have been reused).
fn runs(pid: u32) -> bool {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let program = arguments.split(|b| *b == 0).next().unwrap_or_default();
    ["qemu-system-x86_64", "/ferrolite"].iter().any(|name| program.ends_with(name.as_bytes()))
}

/// Parses `/proc/PID/stat`: the parent is the second word after the command, which is in parentheses.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
