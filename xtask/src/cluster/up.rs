//! The start and the end of the cluster.

use super::hold::Options;
use super::nodes::Programs;
use super::state::Home;
use anyhow::{Context, Result, anyhow, bail};
use lab::ui;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The interval at which the process that holds the cluster is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// The longest time in which the cluster ends.
const END: Duration = Duration::from_secs(30);

/// Starts the cluster.
pub(super) fn up(home: &Home, name: &str, options: &Options) -> Result<()> {
    if home.lock()?.is_none() {
        bail!("the cluster is up already: `cargo xtask cluster down` ends it");
    }
    options.check()?;
    // The builds take minutes. They are done here, where the user sees their progress.
    Programs::get(options)?;
    home.remove()?;
    let path = home.log();
    let log = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["cluster", "--name", name, "hold"]).args(options.words());
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut holder = command.spawn().context("cannot start the process that holds the cluster")?;
    let deadline = Instant::now() + Duration::from_secs(options.timeout) + END;
    let wait = || loop {
        if let Some(status) = holder.try_wait()? {
            let said = std::fs::read_to_string(&path).unwrap_or_default();
            let last = said.lines().rev().find_map(|line| line.strip_prefix("error: "));
            return Err(anyhow!("{}", last.unwrap_or("no reason"))
                .context(format!("the cluster ended with {status}")));
        }
        std::thread::sleep(LOOK);
        if let Some(state) = home.read()?.filter(|state| state.ready) {
            return Ok(state);
        }
        if Instant::now() >= deadline {
            bail!("the cluster is not up within the time set by --timeout; its log is {}", path.display());
        }
    };
    let state = ui::step("waiting until all nodes have joined", wait)?;
    let count = options.count();
    println!("a cluster of {count} nodes is up; its manager is at {}", state.manager);
    println!("status, submit and down are the other commands of `cargo xtask cluster`");
    Ok(())
}

/// Ends the cluster.
pub(super) fn down(home: &Home) -> Result<()> {
    let deadline = Instant::now() + END;
    let state = home.read()?;
    match state {
        _ if home.lock()?.is_some() => bail!("the cluster is not up"),
        None => bail!("the cluster is starting or ending"),
        Some(state) => {
            let holder = i32::try_from(state.holder).ok().and_then(Pid::from_raw);
            kill_process(holder.context("state.json names no process")?, Signal::TERM)?;
        }
    }
    while home.lock()?.is_none() {
        if Instant::now() >= deadline {
            bail!("the cluster does not end within {} s; its log is {}", END.as_secs(), home.log().display());
        }
        std::thread::sleep(LOOK);
    }
    println!("the cluster has ended");
    Ok(())
}
