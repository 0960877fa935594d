//! Benchmarks that are programs of their own, built by `cargo bench`.

use super::destination;
use anyhow::{Context, Result};
use clap::Args;
use lab::{cargo, paths, tool};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::NamedTempFile;

/// The time limit of a benchmark, building included.
const LIMIT: Duration = Duration::from_secs(1800);

/// Returns the file for the programs' output.
pub(super) fn log() -> Result<PathBuf> {
    Ok(paths::state()?.join("bench.log"))
}

/// Builds a benchmark of a package. Returns the program.
pub(super) fn build(package: &str, bench: &str) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["bench", "--quiet", "--package", package, "--bench", bench, "--no-run"]);
    cargo.args(["--message-format", "json"]);
    executable(&run(&mut cargo)?).context("cargo does not say where the benchmark is")
}

/// Builds a benchmark with the profile and the features of the tests, whose crates are compiled already
/// where the tests have been built. Returns the program. Benchmarks of other packages with that name are
/// built as well.
pub(super) fn as_tested(package: &str, bench: &str) -> Result<PathBuf> {
    let mut cargo = cargo::host("build");
    cargo.args(["--quiet", "--workspace", "--features", cargo::LIBIBVERBS, "--bench", bench]);
    cargo.args(["--message-format", "json"]);
    let messages = run(&mut cargo)?;
    let directory = format!("/{package}/benches/");
    let of_package: Vec<_> = messages.lines().filter(|message| message.contains(&directory)).collect();
    executable(&of_package.join("\n")).context("cargo does not say where the benchmark is")
}

/// The amount of measurements of a benchmark, and the destination of its figures.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// Few repetitions: only shows that everything works
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub destination: destination::Options,
}

/// Runs a benchmark. Returns the figures that it writes as JSON.
pub(super) fn figures<T: DeserializeOwned>(program: &Path, quick: bool) -> Result<T> {
    let file = NamedTempFile::new().context("cannot make a file for the figures")?;
    let mut bench = Command::new(program);
    bench.args(quick.then_some("--quick")).arg("--json").arg(file.path());
    run(&mut bench)?;
    serde_json::from_slice(&std::fs::read(file.path())?).context("the figures of the benchmark")
}

/// Runs a benchmark until it has printed a line that begins with `last`, and ends it then. Returns the lines
/// up to that one.
pub(super) fn until(program: &Path, quick: bool, last: &str) -> Result<Vec<String>> {
    let mut bench = Command::new(program);
    bench.args(quick.then_some("--quick")).current_dir(paths::root());
    tool::lines_until(&mut bench, last, LIMIT)
}

/// Builds a simulation, which is an example of a package, and runs it with these arguments. Returns the
/// figures that it writes as JSON.
pub(super) fn simulate<T: DeserializeOwned>(package: &str, example: &str, arguments: &[String]) -> Result<T> {
    let file = NamedTempFile::new().context("cannot make a file for the figures")?;
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--quiet", "--release", "--package", package, "--example", example, "--"]);
    run(cargo.args(arguments).arg("--json").arg(file.path()))?;
    serde_json::from_slice(&std::fs::read(file.path())?).context("the figures of the simulation")
}

/// Runs a command in the repository, which must succeed. Returns its output.
pub(super) fn run(command: &mut Command) -> Result<String> {
    tool::run_ok(command.current_dir(paths::root()), &log()?, LIMIT)
}

/// Returns the last program that cargo's messages name.
fn executable(messages: &str) -> Option<PathBuf> {
    let read = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message.get("executable")?.as_str().map(PathBuf::from)
    };
    messages.lines().rev().find_map(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_cargo_are_read() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"executable\":\"/x/native-1\"}\n\
                        {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages), Some(PathBuf::from("/x/native-1")));
    }
}
