//! Counts instructions by callgrind. The counts do not depend on the speed of the machine, or on its load.

mod profile;

pub(super) use profile::{Calls, Profile};

use super::program;
use anyhow::{Context, Result};
use end_to_end::runner::Outcome;
use lab::{interrupt, setup};
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
    if !setup::valgrind() {
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

/// The cost of one operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count {
    pub instructions: f64,
    /// The two numbers of wire operations that the program prints.
    pub wire: [f64; 2],
}

/// Returns the instructions of one operation of a program, as [`count`] does.
pub(super) fn each(program: &Path, arguments: &[&str], few: u32) -> Result<f64> {
    Ok(count(program, arguments, few)?.instructions)
}

/// Counts one operation of a program. The program does `few` operations and then twice as many, and the
/// difference is counted, so that set-up does not count. The program's last argument is the number of
/// operations. It prints its wire operations.
pub(super) fn count(program: &Path, arguments: &[&str], few: u32) -> Result<Count> {
    let run = |count: u32| {
        interrupt::check()?;
        let count = count.to_string();
        let mut valgrind = valgrind(Path::new("/dev/null"), &[]);
        valgrind.arg(program).args(arguments).arg(count);
        let output = program::run(&mut valgrind)?;
        let wire = wire(&output).context("the program tells no wire operations")?;
        let instructions = collected(&output).context("valgrind tells no count")?;
        Ok::<_, anyhow::Error>([instructions, wire[0], wire[1]])
    };
    let [once, twice] = [run(few)?, run(2 * few)?];
    let each = |i: usize| (twice[i] as f64 - once[i] as f64) / f64::from(few);
    Ok(Count { instructions: each(0), wire: [each(1), each(2)] })
}

/// Runs a program under callgrind with these options of callgrind. Returns the profile.
pub(super) fn profile(options: &[&str], program: &Path, arguments: &[&str]) -> Result<Profile> {
    Ok(run(options, program, arguments)?.0)
}

/// Runs a program that prints its wire operations under callgrind. Returns the profile and their two numbers.
pub(super) fn profile_and_wire(program: &Path, arguments: &[&str]) -> Result<(Profile, [u64; 2])> {
    let (profile, output) = run(&[], program, arguments)?;
    Ok((profile, wire(&output).context("the program tells no wire operations")?))
}

fn run(options: &[&str], program: &Path, arguments: &[&str]) -> Result<(Profile, String)> {
    interrupt::check()?;
    let dir = tempfile::tempdir().context("cannot make a directory for the profile")?;
    let file = dir.path().join("callgrind");
    let output = program::run(valgrind(&file, options).arg(program).args(arguments))?;
    let text = std::fs::read_to_string(&file).context("valgrind has written no profile")?;
    Ok((Profile::parse(&text), output))
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

/// Parses `wire: 12 frames, 34 doorbells`.
fn wire(output: &str) -> Option<[u64; 2]> {
    let line = output.lines().find_map(|line| line.strip_prefix("wire: "))?;
    let (first, second) = line.split_once(", ")?;
    let number = |part: &str| part.split(' ').next()?.parse().ok();
    Some([number(first)?, number(second)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read() {
        assert_eq!(collected("==7== Events    : Ir\n==7== Collected : 123456\n"), Some(123_456));
        assert_eq!(collected("nothing"), None);
        assert_eq!(wire("==7== x\nwire: 12 work requests, 34 doorbells\n"), Some([12, 34]));
        assert_eq!(wire("wire: 12 frames"), None);
    }
}
