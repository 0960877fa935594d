//! Benchmarks that are programs of their own, built by `cargo bench`.

use super::destination;
use anyhow::{Context, Result, ensure};
use clap::Args;
use lab::{cargo, interrupt, paths, tool};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
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

/// A process, which is killed when this is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a benchmark until it has printed a line that begins with `last`, and ends it then. Returns the lines
/// up to that one.
pub(super) fn until(program: &Path, quick: bool, last: &str) -> Result<Vec<String>> {
    let output = NamedTempFile::new().context("cannot make a file for the output")?;
    let mut bench = Command::new(program);
    bench.args(quick.then_some("--quick")).current_dir(paths::root()).stdout(output.reopen()?);
    let child = bench.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let (mut child, deadline) = (Ended(child), Instant::now() + LIMIT);
    loop {
        // Whatever a program that has ended printed is in the file.
        let has_ended = child.0.try_wait()?.is_some();
        let text = std::fs::read_to_string(output.path())?;
        if let Some(lines) = lines_until(&text, last) {
            return Ok(lines);
        }
        ensure!(!has_ended, "{} has ended without a line `{last}`", program.display());
        ensure!(Instant::now() < deadline, "{} has not printed a line `{last}`", program.display());
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the lines of `text` up to the first one that begins with `last`, if that is complete.
fn lines_until(text: &str, last: &str) -> Option<Vec<String>> {
    let (complete, _) = text.rsplit_once('\n')?;
    let place = complete.lines().position(|line| line.starts_with(last))?;
    Some(complete.lines().take(place + 1).map(str::to_owned).collect())
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
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_line_that_is_not_complete_is_not_the_last_one() {
        assert_eq!(lines_until("a 1\nb 2", "b"), None);
        assert_eq!(lines_until("a 1\nb 2\nc", "b"), Some(vec!["a 1".into(), "b 2".into()]));
    }

    #[test]
    fn a_program_ends_after_the_line_and_one_without_it_fails() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("bench");
        std::fs::write(&program, "#!/bin/sh\necho x\necho y 1\nexec sleep 600\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(until(&program, false, "y").unwrap(), ["x", "y 1"]);
        let error = until(Path::new("/bin/true"), false, "y").unwrap_err().to_string();
        assert_eq!(error, "/bin/true has ended without a line `y`");
    }

    #[test]
    fn messages_of_cargo_are_read() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"executable\":\"/x/native-1\"}\n\
                        {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages), Some(PathBuf::from("/x/native-1")));
    }
}
