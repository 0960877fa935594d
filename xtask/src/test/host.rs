//! The tests of the host workspace's crates, run by cargo and counted one by one; and the simulation's fresh
//! seeds.

use crate::bench::callgrind::{self, Counted};
use crate::bench::{guard, instructions, path, shares};
use anyhow::{Context, Result, ensure};
use end_to_end::runner::cargo_test::{SILENCE, cargo_test, many};
use end_to_end::runner::{Case, Lane, Outcome};
use lab::cargo::{self, LIBIBVERBS};
use lab::{paths, tool};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The longest silence, while programs are built for measurements.
const BUILD: Duration = Duration::from_secs(1800);
/// Arguments that select all crates, also those that need a library of the host.
const WORKSPACE: [&str; 3] = ["--workspace", "--features", LIBIBVERBS];

/// The RNICs of simulated nodes, in turn, where LITE's tests run on emulated cards: RoCE v2, RoCE v1, virtual
/// functions, all kinds.
const CARDS: [&str; 4] = ["cx3", "cx3:cx3", "cx3-vf", "cx3,cx3:large-entries,cx3-vf,softroce"];

pub(super) fn cases() -> Vec<Case> {
    let on_cards = |nics: &'static str| {
        Case::new(format!("sim::every-test-on {nics}"), move |log| every_test_on(nics, log)).full_if(true)
    };
    let mut cases = vec![
        Case::new("host::cargo-test", |log| cargo_test(&WORKSPACE, log)),
        Case::new("sim::fresh-seeds", |log| fresh_seeds("softroce", "2", log))
            .runs(&["--example", "explore"]),
        Case::new("sim::fresh-seeds-on-cards", |log| fresh_seeds("cx3,cx3-vf,softroce", "0.5", log))
            .runs(&["--example", "explore"]),
        // Tests that fetch packages of Debian and boot Linux, and tests that take minutes. They run one after
        // another: some of them measure, or fill the machine with a thousand connections and more.
        Case::new("host::cargo-test-ignored", |log| {
            cargo_test(&[&WORKSPACE[..], &["--", "--ignored", "--test-threads=1"]].concat(), log)
        })
        .full_if(true),
        counted("host::cost-of-operations", guard::count),
        counted("host::instructions-of-operations", instructions::count).full_if(true),
        counted("host::path-of-a-write", path::count).full_if(true),
        counted("host::instructions-of-lite", shares::count).full_if(true),
        Case::new("host::graphs-beside-others", graphs_beside_others).in_lane(Lane::Host).full_if(true),
    ];
    cases.extend(CARDS.map(on_cards));
    cases
}

/// Returns the test of a benchmark that counts instructions.
fn counted(name: &str, count: fn() -> Result<Counted>) -> Case {
    let show = |tables: &str, log: &Path| std::fs::write(log, tables).context("cannot write the log");
    Case::new(name, move |log| callgrind::check(count, |tables| show(tables, log))).in_lane(Lane::Host)
}

/// Runs the simulated cluster with new random seeds for some minutes. A failing seed is printed with a
/// command that replays it.
fn fresh_seeds(nics: &str, minutes: &str, log: &Path) -> Result<Outcome> {
    let mut command = Command::new(cargo::built_for_tests("examples/explore")?);
    command.args(["--nic", nics, "--minutes", minutes]);
    tool::run_ok(command.current_dir(paths::root()), log, SILENCE)?;
    Ok(Outcome::Passed)
}

/// Compares the graph applications with the crate `graph` on a small graph: the results must agree. It builds
/// for measurements, which takes minutes.
fn graphs_beside_others(log: &Path) -> Result<Outcome> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench", "apps", "--quick"]);
    let output = tool::run_ok(&mut command, log, BUILD)?;
    ensure!(output.contains("SHA-256") && output.contains("pagerank, two nodes"), "no figures: {output}");
    if output.contains("not measured: crate graph") {
        return Ok(Outcome::Skipped("crates.io cannot be had".into()));
    }
    for algorithm in ["pagerank", "cc", "sssp", "tc"] {
        let is_row = |line: &str| line.contains(algorithm) && line.contains("crate graph  ");
        ensure!(output.lines().any(is_row), "no row of {algorithm}: {output}");
    }
    Ok(Outcome::Passed)
}

/// Runs all tests on simulated clusters with these RNICs.
fn every_test_on(nics: &str, log: &Path) -> Result<Outcome> {
    let mut command = cargo::host("test");
    command.args(["--no-fail-fast", "--package", "sim", "--package", "semantics"]);
    many(command.env("FERROLITE_SIM_NIC", nics), log)
}
