//! The tests of the host workspace's crates, run by cargo and counted one by one; and the simulation's fresh
//! seeds.

use super::cases::{Case, Outcome, Tally};
use crate::cargo::{self, LIBIBVERBS};
use crate::{paths, tool};
use anyhow::Result;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The longest silence of a test. The runner names a test when it ends, and once it has run for a minute.
const SILENCE: Duration = Duration::from_secs(900);

/// Arguments that select all crates, also those that need a library of the host.
const WORKSPACE: [&str; 3] = ["--workspace", "--features", LIBIBVERBS];

/// The RNICs of simulated nodes, in turn, where LITE's tests run on emulated cards: RoCE v2, RoCE v1, virtual
/// functions, all kinds.
const CARDS: [&str; 4] = ["cx3", "cx3:cx3", "cx3-vf", "cx3,cx3:large-entries,cx3-vf,softroce"];

pub fn cases() -> Vec<Case> {
    let on_cards = |nics: &'static str| {
        Case::new(format!("sim::every-test-on {nics}"), move |log| every_test_on(nics, log)).full_if(true)
    };
    let mut cases = vec![
        Case::new("host::cargo-test", |log| cargo_test(&WORKSPACE, log)),
        Case::new("sim::fresh-seeds", |log| fresh_seeds("softroce", "2", log)),
        Case::new("sim::fresh-seeds-on-cards", |log| fresh_seeds("cx3,cx3-vf,softroce", "0.5", log)),
        // Tests that fetch packages of Debian and boot Linux, and tests that take minutes.
        Case::new("host::cargo-test-ignored", |log| {
            cargo_test(&[&WORKSPACE[..], &["--", "--ignored"]].concat(), log)
        })
        .full_if(true),
    ];
    cases.extend(CARDS.map(on_cards));
    cases
}

/// Runs the simulated cluster with new random seeds for some minutes. A failing seed is printed with a
/// command that replays it.
fn fresh_seeds(nics: &str, minutes: &str, log: &Path) -> Result<Outcome> {
    let mut command = Command::new(cargo::built_for_tests("examples/explore")?);
    command.args(["--nic", nics, "--minutes", minutes]);
    tool::run_ok(command.current_dir(paths::root()), log, SILENCE)?;
    Ok(Outcome::Passed)
}

/// Runs all tests on simulated clusters with these RNICs.
fn every_test_on(nics: &str, log: &Path) -> Result<Outcome> {
    let mut command = cargo::host("test");
    command.args(["--no-fail-fast", "--package", "sim", "--package", "semantics"]);
    many(command.env("FERROLITE_SIM_NIC", nics), log)
}

/// Runs `cargo test` with these arguments, as one test that consists of many.
pub fn cargo_test(args: &[&str], log: &Path) -> Result<Outcome> {
    many(cargo::host("test").arg("--no-fail-fast").args(args), log)
}

fn many(cargo: &mut Command, log: &Path) -> Result<Outcome> {
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
