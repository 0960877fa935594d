//! Test cases, and their runs.

pub mod cargo_test;
mod case;
mod lock;
mod schedule;
mod timings;

pub use case::{Case, Check, Lane, Outcome, Tally};
pub use lock::RunLock;
pub use timings::Timings;

use crate::job::inputs;
use anyhow::{Context, Result};
use lab::{interrupt, paths, setup};
use std::path::PathBuf;

/// Prepares the machine, and runs the tests, `jobs` at once [default: one for each processor, up to a limit].
pub fn run(_lock: &RunLock, cases: Vec<Case>, jobs: Option<usize>) -> Result<(Tally, Timings)> {
    interrupt::watch()?;
    setup::qemu()?;
    setup::components()?;
    setup::bindings()?;
    inputs::clear()?;
    let ran = schedule::run(cases, jobs.unwrap_or_else(schedule::default_jobs), &fresh_logs()?)?;
    inputs::clear()?;
    Ok(ran)
}

fn fresh_logs() -> Result<PathBuf> {
    let dir = paths::state()?.join("test-logs");
    match std::fs::remove_dir_all(&dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).context("cannot remove old logs")?,
        _ => paths::made(dir),
    }
}
