//! Counts instructions by callgrind. The counts do not depend on the speed of the machine, or on its load.

mod profile;

pub(super) use profile::{Calls, Profile};

use super::program;
use anyhow::{Context, Result};
use end_to_end::runner::Outcome;
use lab::{interrupt, tool};
use std::path::Path;
use std::process::Command;

/// The counts of a benchmark: their tables, and whether they are within their bounds.
pub(crate) struct Counted {
    pub tables: String,
    pub verdict: Result<()>,
}

/// Runs a benchmark, passes its tables to `show`, and fails if a count is out of its bounds.
pub(crate) fn check(
    count: impl FnOnce() -> Result<Counted>,
    show: impl FnOnce(&str) -> Result<()>,
) -> Result<Outcome> {
    if !tool::exists("valgrind") {
        return Ok(Outcome::Skipped("there is no valgrind; install the package valgrind".into()));
    }
    let counted = count()?;
    show(&counted.tables)?;
    counted.verdict.map(|()| Outcome::Passed)
}

/// Runs a benchmark and prints its tables. Fails if a count is out of its bounds.
pub(super) fn bench(count: impl FnOnce() -> Result<Counted>) -> Result<()> {
    interrupt::watch()?;
    let outcome = check(count, |tables| {
        println!("\n{tables}");
        Ok(())
    })?;
    if let Outcome::Skipped(_) = outcome {
        println!("{outcome}");
    }
    Ok(())
}

/// Returns the instructions of one operation of a program. The program runs `few` operations and then twice
/// as many, and the difference is counted, so that set-up does not count. The program's last argument is the
/// number of operations.
pub(super) fn each(program: &Path, arguments: &[&str], few: u32) -> Result<f64> {
    let run = |count: u32| {
        interrupt::check()?;
        let count = count.to_string();
        let mut valgrind = valgrind(Path::new("/dev/null"), &[]);
        valgrind.arg(program).args(arguments).arg(count);
        collected(&program::run(&mut valgrind)?).context("valgrind tells no count")
    };
    let [once, twice] = [few, 2 * few].map(run);
    Ok((twice? as f64 - once? as f64) / f64::from(few))
}

/// Runs a program under callgrind with these options of callgrind. Returns the profile.
pub(super) fn profile(options: &[&str], program: &Path, arguments: &[&str]) -> Result<Profile> {
    interrupt::check()?;
    let dir = tempfile::tempdir().context("cannot make a directory for the profile")?;
    let file = dir.path().join("callgrind");
    program::run(valgrind(&file, options).arg(program).args(arguments))?;
    let text = std::fs::read_to_string(&file).context("valgrind has written no profile")?;
    Ok(Profile::parse(&text))
}

/// Returns a command that runs callgrind, without the program.
fn valgrind(profile: &Path, options: &[&str]) -> Command {
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", profile.display())).args(options);
    valgrind
}

/// Parses `==1234== Collected : 123456`.
fn collected(output: &str) -> Option<u64> {
    let line = output.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read() {
        assert_eq!(collected("==7== Events    : Ir\n==7== Collected : 123456\n"), Some(123_456));
        assert_eq!(collected("nothing"), None);
    }
}
