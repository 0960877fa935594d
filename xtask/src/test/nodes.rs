//! A node that dies in mid-run: the run ends soon, names it, and leaves nothing behind.

use super::cases::{Case, Outcome};
use super::end_to_end::xtask;
use super::inputs::Input;
use super::misuse::one_error;
use crate::tool;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// From the death of a node to the end of the run.
const BOUND: Duration = Duration::from_secs(30);

pub fn cases() -> Vec<Case> {
    vec![Case::new("nodes::killed-in-mid-run", |log| killed(log).map(|()| Outcome::Passed))]
}

fn killed(log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [input, output] = ["in", "out"].map(|name| dir.path().join(name));
    // Large enough to last until node 1 is found.
    Input::LongWord.write(&input)?;
    let file = File::create(log)?;
    let mut command = xtask();
    command.args(["run", "--nodes", "3"]).arg("--input").arg(&input).arg("--output").arg(&output);
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut child = qemu::die_with_this_thread(&mut command).spawn()?;
    let victim = find_node(child.id(), "node1", &mut || Ok(child.try_wait()?.is_some()))?;
    let started = children(child.id());
    kill_process(victim, Signal::KILL).context("kill")?;
    let status = tool::wait(&mut child, BOUND)?;
    let Some(status) = status else { bail!("the run went on for {} s", BOUND.as_secs()) };
    ensure!(!status.success(), "the run succeeded without its node");
    one_error(&std::fs::read_to_string(log)?, "node1")?;
    ensure!(!output.exists(), "there is an output file");
    let left: Vec<_> = started.into_iter().filter(|pid| runs(*pid)).collect();
    ensure!(left.is_empty(), "still running: {left:?}");
    Ok(())
}

/// The QEMU below process `parent` that is named `name`; waits for it.
fn find_node(parent: u32, name: &str, ended: &mut dyn FnMut() -> Result<bool>) -> Result<Pid> {
    let deadline = Instant::now() + Duration::from_secs(600);
    while Instant::now() < deadline {
        for pid in children(parent) {
            let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = arguments.split(|b| *b == 0);
            if words.any(|w| w == b"-name") && words.next() == Some(name.as_bytes()) {
                return i32::try_from(pid).ok().and_then(Pid::from_raw).context("no such process id");
            }
        }
        ensure!(!ended()?, "the run ended before its nodes were started");
        std::thread::sleep(Duration::from_millis(5));
    }
    bail!("no node was started")
}

/// The processes whose parent is `parent`.
fn children(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|p| p.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

/// Whether a process is there and is a virtual machine or a manager (its number may have been given to another one).
fn runs(pid: u32) -> bool {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let program = arguments.split(|b| *b == 0).next().unwrap_or_default();
    ["qemu-system-x86_64", "ferrolite-manager"].iter().any(|name| program.ends_with(name.as_bytes()))
}

/// From `/proc/PID/stat`: the second word after the command, which stands in parentheses.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
