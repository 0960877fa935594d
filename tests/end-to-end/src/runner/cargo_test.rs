//! Runs of `cargo test`, whose tests are counted one by one.

use super::{Outcome, Tally};
use anyhow::Result;
use lab::{cargo, tool};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The longest silence of a test. The runner names a test when it ends, and once it has run for a minute.
pub const SILENCE: Duration = Duration::from_secs(900);

/// Runs `cargo test` with the given arguments, as one test case that counts many tests.
pub fn cargo_test(args: &[&str], log: &Path) -> Result<Outcome> {
    many(cargo::host("test").arg("--no-fail-fast").args(args), log)
}

/// Runs a `cargo test` command, as one test case that counts many tests.
pub fn many(cargo: &mut Command, log: &Path) -> Result<Outcome> {
    let done = tool::run(cargo, log, SILENCE)?;
    let mut tally = tally(&done.output);
    let failure = (!done.status.success()).then(|| reason(&done.output));
    if failure.is_some() && tally.failed == 0 {
        // The build failed, or a test program died.
        tally.failed = 1;
    }
    Ok(Outcome::Many { tally, failure })
}

/// Adds up lines such as `test result: ok. 11 passed; 0 failed; 2 ignored; ...`. A test that finds that it
/// cannot run passes, and prints a line with `SKIPPED: `.
fn tally(output: &str) -> Tally {
    let mut tally = Tally::default();
    for line in output.lines().filter(|l| l.starts_with("test result: ")) {
        let count = |what: &str| {
            let words: Vec<_> = line.split([' ', ';']).collect();
            let at = words.iter().position(|w| *w == what).and_then(|at| words.get(at.checked_sub(1)?));
            at.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
        };
        tally.passed += count("passed");
        tally.failed += count("failed");
        tally.skipped += count("ignored");
    }
    let skipped = output.lines().filter(|line| line.starts_with("SKIPPED: ")).count() as u64;
    tally.passed = tally.passed.saturating_sub(skipped);
    tally.skipped += skipped;
    tally
}

/// Returns the names of the failed tests, or the first error of the build.
fn reason(output: &str) -> String {
    let failed: Vec<_> =
        output.lines().filter_map(|l| l.strip_prefix("test ")?.strip_suffix(" ... FAILED")).collect();
    if failed.is_empty() {
        output.lines().find(|l| l.starts_with("error")).unwrap_or("cargo test failed").to_owned()
    } else {
        failed.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up_and_names_failures() {
        let output = "SKIPPED: a: no such tool\ntest a ... ok\ntest b::c ... FAILED\n\
            test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
            test result: ok. 10 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        assert_eq!(tally(output), Tally { passed: 12, failed: 1, skipped: 3 });
        assert_eq!(reason(output), "b::c");
        assert_eq!(reason("warning: x\nerror[E1]: no\nerror: could not"), "error[E1]: no");
    }
}
