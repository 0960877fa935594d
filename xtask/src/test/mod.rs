//! `cargo xtask test`: every check of the repository as a list of cases, run one after the other.

mod boot;
mod capture;
mod cases;
mod cluster;
mod cx3;
mod end_to_end;
mod host;
mod inputs;
mod lab;
mod lint;
mod linux;
mod linux_node;
mod linux_peer;
mod misuse;
mod nodes;
mod perftest;
mod semantics;
mod tools;

use crate::{interrupt, paths, setup, ui};
use anyhow::{Context as _, Result, bail};
use cases::{Case, Outcome, Tally};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Which tests to run.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Runs only tests whose name contains one of these [default: all]
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// Runs everything, also what takes long [default: the quick set, at most 15 minutes on 2 processors]
    #[arg(long)]
    full: bool,
    /// Runs everything of the emulated ConnectX-3 (`cx3::`), also what takes long, and nothing else
    #[arg(long, conflicts_with = "full")]
    cx3: bool,
    /// Lists the names of the tests and runs none
    #[arg(long)]
    list: bool,
}

/// Runs the tests. The last line printed is `N passed, N failed`, with `, N skipped` if there are such.
pub fn test(options: &Options) -> ExitCode {
    match try_test(options) {
        Ok(Some(tally)) => {
            println!("{tally}");
            if tally.failed == 0 && tally.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(e) => {
            println!("error: {}", ui::one_line(&e));
            println!("{}", Tally { failed: 1, ..Tally::default() });
            ExitCode::FAILURE
        }
    }
}

fn try_test(options: &Options) -> Result<Option<Tally>> {
    let mut cases = all(options.full)?;
    cases.retain(
        |case| {
            if options.cx3 { case.name.starts_with(cx3::GROUP) } else { options.full || !case.full }
        },
    );
    let matches = |case: &Case, filter: &String| case.name.contains(filter);
    if let Some(filter) = options.filter.iter().find(|f| !cases.iter().any(|case| matches(case, f))) {
        bail!(
            "no test of this set has `{filter}` in its name; --list shows them, --full and --cx3 choose other sets"
        );
    }
    cases.retain(|case| options.filter.is_empty() || options.filter.iter().any(|f| matches(case, f)));
    if options.list {
        cases.iter().for_each(|case| println!("{}", case.name));
        return Ok(None);
    }
    interrupt::watch()?;
    setup::qemu()?;
    setup::components()?;
    setup::bindings()?;
    inputs::clear()?;
    let tally = run(cases)?;
    inputs::clear()?;
    Ok(Some(tally))
}

/// Every test there is. Cheap ones and those that find most come first.
fn all(full: bool) -> Result<Vec<Case>> {
    let groups = [
        lint::cases(),
        lint::builds(),
        host::cases(),
        tools::cases(full),
        boot::cases(),
        cluster::cases(),
        semantics::cases(),
        nodes::cases(),
        misuse::cases(),
        linux::cases(),
        linux_node::cases(),
        linux_peer::cases(),
        perftest::cases(),
        cx3::cases(),
        end_to_end::cases(),
    ];
    Ok(groups.into_iter().flatten().collect())
}

fn run(cases: Vec<Case>) -> Result<Tally> {
    let logs = fresh_logs()?;
    let (count, width) = (cases.len(), cases.iter().map(|c| c.name.len()).max().unwrap_or(0));
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    for (n, case) in cases.into_iter().enumerate() {
        interrupt::check()?;
        let log = logs.join(format!("{}.log", case.name.replace([':', ' ', '/'], "-")));
        print!("[{:>3}/{count}] {:<width$} ... ", n + 1, case.name);
        let _ = std::io::Write::flush(&mut std::io::stdout());
        let started = Instant::now();
        let outcome = (case.check)(&log).unwrap_or_else(|e| Outcome::Failed(ui::one_line(&e)));
        println!("{outcome} ({:.1} s)", started.elapsed().as_secs_f64());
        tally.add(&outcome);
        if let Some(why) = outcome.failure() {
            failures.push(format!("{}: {why}\n    log: {}", case.name, log.display()));
        }
    }
    if !failures.is_empty() {
        println!("\nfailures:");
        failures.iter().for_each(|failure| println!("  {failure}"));
        println!();
    }
    Ok(tally)
}

fn fresh_logs() -> Result<PathBuf> {
    let dir = paths::state()?.join("test-logs");
    match std::fs::remove_dir_all(&dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).context("cannot remove old logs")?,
        _ => paths::made(dir),
    }
}
