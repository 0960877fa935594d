//! Benchmarks that are programs of their own, built by `cargo bench`.

use anyhow::{Context, Result};
use lab::{paths, tool};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

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
