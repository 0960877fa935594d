//! The figures of the paper: each is measured with few operations, to show that its command works.

use crate::bench::figures::NAMES;
use anyhow::{Context, Result, ensure};
use end_to_end::runner::{Case, Outcome};
use lab::tool;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The longest silence, while programs are built for measurements.
const SILENCE: Duration = Duration::from_secs(1800);

/// Returns a test for each figure. They build for measurements, which takes minutes.
pub(super) fn cases() -> Vec<Case> {
    let case = |(name, rows): (&'static str, usize)| {
        let run = move |log: &Path| quick(name, rows, log).map(|()| Outcome::Passed);
        Case::new(format!("figures::{name}"), run).full_if(true)
    };
    NAMES.into_iter().map(case).collect()
}

/// Checks that a figure is printed, with at least `rows` rows of numbers, and with what is known of the
/// paper's.
fn quick(name: &str, rows: usize, log: &Path) -> Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench", "figures", "--figure", name, "--quick"]);
    let output = tool::run_ok(&mut command, log, SILENCE)?;
    let (table, _) = output.split_once("\n  (").context("the figure has no remark")?;
    let is_number = |word: &str| word.parse::<f64>().is_ok();
    let numbers =
        table.lines().filter(|line| line.split_whitespace().filter(|word| is_number(word)).count() >= 2);
    let found = numbers.count();
    ensure!(found >= rows, "{found} rows of numbers, not {rows}: {output}");
    ensure!(output.contains("Paper: "), "nothing about the paper's figure: {output}");
    Ok(())
}
