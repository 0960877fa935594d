//! The suite of LITE's semantics (`tests/semantics`) on appliances. On the simulated cluster it is a test of
//! `cargo test`.

use crate::job::xtask;
use crate::runner::{Case, Outcome, Tally};
use anyhow::{Context, Result, ensure};
use lab::cargo::Profile;
use lab::image::{self, Contents};
use lab::{manager, tool};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest silence of the run on a busy host.
const LIMIT: Duration = Duration::from_secs(600);
/// The number of appliances, which is the largest number of roles of a case.
const NODES: &str = "3";
/// Memory of each appliance in MiB, enough for regions larger than 128 MiB.
const MEMORY_MIB: &str = "224";

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("semantics::on-appliances", |log| on_appliances("softroce", log))]
}

/// Returns the image with the suite among its applications.
fn kernel(log: &Path) -> Result<PathBuf> {
    Ok(image::build_quietly(&Contents::tests(), |cargo| tool::run_ok(cargo, log, LIMIT).map(drop))?.elf)
}

/// Runs the suite on appliances with an RDMA device. Each of its cases counts as a test.
pub(crate) fn on_appliances(nic: &str, log: &Path) -> Result<Outcome> {
    let dir = tempfile::TempDir::with_prefix("ferrolite-")?;
    let [programs, input, output] = ["programs", "in", "out"].map(|name| dir.path().join(name));
    std::fs::create_dir(&programs)?;
    std::fs::write(&input, "")?;
    for (program, name) in [(kernel(log)?, "ferrolite.elf"), (manager::build(Profile::Dev)?, "ferrolite")] {
        std::os::unix::fs::symlink(program, programs.join(name))?;
    }
    let mut run = xtask();
    run.args(["run", "--app", "semantics", "--nodes", NODES, "--memory", MEMORY_MIB, "--nic", nic]);
    run.arg("--programs").arg(programs).arg("--input").arg(input).arg("--output").arg(&output);
    run.arg("--console").arg(log.with_extension("consoles"));
    tool::run_ok(&mut run, log, LIMIT)?;
    let said = std::fs::read_to_string(&output)?;
    std::io::Write::write_all(
        &mut std::fs::File::options().append(true).create(true).open(log)?,
        said.as_bytes(),
    )?;
    outcome(&said)
}

/// Parses the suite's output, which has the form of the Test Anything Protocol: `1..N`, then `ok` or `not ok`
/// for each case.
fn outcome(said: &str) -> Result<Outcome> {
    let mut lines = said.lines();
    let planned = lines.next().and_then(|plan| plan.strip_prefix("1..")?.parse::<u64>().ok());
    let planned =
        planned.filter(|cases| *cases > 0).context("the suite does not say how many cases it has")?;
    let (mut tally, mut failures) = (Tally::default(), Vec::new());
    for line in lines {
        if line.starts_with("ok ") {
            tally.passed += 1;
        } else {
            tally.failed += 1;
            failures.push(line.trim_start_matches("not ok ").to_owned());
        }
    }
    let ended = tally.passed + tally.failed;
    ensure!(ended == planned, "of {planned} cases {ended} have ended");
    Ok(Outcome::Many { tally, failure: (!failures.is_empty()).then(|| failures.join("; ")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_cases_and_misses_those_that_are_missing() {
        let tally = |passed, failed| Tally { passed, failed, skipped: 0 };
        let good = outcome("1..2\nok 1 - a\nok 2 - b\n");
        assert_eq!(good.ok(), Some(Outcome::Many { tally: tally(2, 0), failure: None }));
        let bad = outcome("1..2\nok 1 - a\nnot ok 2 - b # rank 1: why\n");
        let failure = Some("2 - b # rank 1: why".to_owned());
        assert_eq!(bad.ok(), Some(Outcome::Many { tally: tally(1, 1), failure }));
        for wrong in ["", "1..0\n", "1..2\nok 1 - a\n", "ok 1 - a\n"] {
            assert!(outcome(wrong).is_err(), "{wrong}");
        }
    }
}
