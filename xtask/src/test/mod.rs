//! `cargo xtask test`: every check of the repository as a list of cases. The checks of the sources are here,
//! the tests that run programs are in `tests/end-to-end`.

mod figures;
mod host;
mod lint;
mod new_app;
mod tools;

use anyhow::{Result, bail};
use clap::Args;
use end_to_end::runner::{self, Case, RunLock, Tally};
use lab::ui;
use std::process::ExitCode;

/// The reason for which a run is refused while another one goes on.
const BUSY: &str = "other tests run in this clone, with the same logs and programs; wait for their end";

/// The selection of tests.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Runs only tests whose name contains one of these [default: all]
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// Runs everything, also slow tests [default: the quick set, about 20 minutes on 2 processors if nothing
    /// is compiled yet, 8 if everything is]
    #[arg(long)]
    full: bool,
    /// Runs all tests of the emulated ConnectX-3 (`cx3::`), also slow ones, and no others
    #[arg(long, conflicts_with = "full")]
    cx3: bool,
    /// Boots by every loader and firmware (`boot::`), and runs no other tests
    #[arg(long, conflicts_with_all = ["full", "cx3"])]
    boot: bool,
    /// Number of tests at once [default: one for each processor, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: Option<u16>,
    /// Prints the durations: a table of groups and a table of tests
    #[arg(long)]
    timings: bool,
    /// Lists the names of the tests and runs none
    #[arg(long)]
    list: bool,
}

/// Runs the tests. The last printed line is `N passed, N failed`, with `, N skipped` if tests were skipped.
/// If other tests run in this clone, the only line says so.
pub(crate) fn test(options: &Options) -> ExitCode {
    match try_test(options) {
        Ok(status) => status,
        Err(e) => {
            println!("error: {}", ui::one_line(&e));
            println!("{}", Tally { failed: 1, ..Tally::default() });
            ExitCode::FAILURE
        }
    }
}

fn try_test(options: &Options) -> Result<ExitCode> {
    let mut cases = all(options.full);
    cases.retain(|case| {
        if options.cx3 {
            case.name.starts_with(end_to_end::EMULATED_CARDS)
        } else if options.boot {
            case.name.starts_with(end_to_end::BOOT_MATRIX)
        } else {
            options.full || !case.full
        }
    });
    let matches = |case: &Case, filter: &String| case.name.contains(filter);
    if let Some(filter) = options.filter.iter().find(|f| !cases.iter().any(|case| matches(case, f))) {
        bail!(
            "no test of this set has `{filter}` in its name; --list shows them, --full, --cx3 and --boot choose other sets"
        );
    }
    cases.retain(|case| options.filter.is_empty() || options.filter.iter().any(|f| matches(case, f)));
    if options.list {
        cases.iter().for_each(|case| println!("{}", case.name));
        return Ok(ExitCode::SUCCESS);
    }
    let Some(lock) = RunLock::take()? else {
        println!("error: {BUSY}");
        return Ok(ExitCode::FAILURE);
    };
    let builds: Vec<_> = end_to_end::missing(&cases).collect();
    cases.splice(..0, builds);
    let (tally, timings) = runner::run(&lock, cases, options.jobs.map(usize::from))?;
    if options.timings {
        println!("{timings}");
    }
    println!("{tally}");
    let passed = tally.failed == 0 && tally.passed > 0;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns all tests. Cheap tests, and those that find most bugs, come first.
fn all(full: bool) -> Vec<Case> {
    let of_sources = [
        lint::cases(),
        end_to_end::builds(),
        host::cases(),
        new_app::cases(),
        tools::cases(full),
        figures::cases(),
    ];
    of_sources.into_iter().flatten().chain(end_to_end::cases(full)).collect()
}
