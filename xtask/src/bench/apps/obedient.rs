//! Sides that keep the graph in memory and obey lines on their standard input.

use super::Algorithm;
use super::graph::Graph;
use crate::bench::program;
use anyhow::{Context, Result, bail, ensure};
use lab::{paths, tool};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The version of networkit.
const NETWORKIT: &str = "networkit==11.3";

/// A running side.
pub(super) struct Obedient {
    pub(super) name: &'static str,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Obedient {
    /// Starts a side, which must find all edges of the graph.
    pub(super) fn start(name: &'static str, mut command: Command, graph: &Graph) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .env("RAYON_NUM_THREADS", "1")
            .env("OMP_NUM_THREADS", "1")
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.context("the side has no pipes")?;
        let mut side = Self { name, child, input, output: BufReader::new(output) };
        let edges: u64 = side.answer("edges ")?.parse().context("the number of edges")?;
        ensure!(edges == graph.edges, "{name} finds {edges} edges, not {}", graph.edges);
        Ok(side)
    }

    /// Returns what follows `key` in the next line.
    fn answer(&mut self, key: &str) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        match line.trim_end().strip_prefix(key) {
            Some(rest) => Ok(rest.to_owned()),
            None => bail!("{} answers {line:?}, not {key}", self.name),
        }
    }

    /// Runs an algorithm, and returns the seconds.
    pub(super) fn run(&mut self, algorithm: Algorithm) -> Result<f64> {
        writeln!(self.input, "run {}", algorithm.name())?;
        self.answer("time ")?.parse().context("the seconds")
    }

    /// Writes the result of the latest run into a file.
    pub(super) fn result(&mut self, file: &Path) -> Result<()> {
        writeln!(self.input, "result {}", file.display())?;
        self.answer("written").map(drop)
    }
}

impl Drop for Obedient {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the processors on which this process may run.
pub(super) fn processors() -> Result<Vec<u32>> {
    let status = std::fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let cpus = list.and_then(|list| parse(list.trim())).context("the list of processors")?;
    ensure!(!cpus.is_empty(), "no processor is allowed");
    Ok(cpus)
}

/// Parses a list such as `0-2,5`.
fn parse(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

fn peers() -> PathBuf {
    paths::root().join("apps/graph/peers")
}

/// Returns the program that runs networkit.
pub(super) fn script() -> PathBuf {
    peers().join("with_networkit.py")
}

/// Builds the program of the crate `graph`, which is a workspace of its own.
pub(super) fn build_crate() -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--release", "--locked", "--manifest-path"]);
    cargo.arg(peers().join("Cargo.toml")).arg("--target-dir").arg(paths::target());
    program::run(&mut cargo)?;
    Ok(paths::target().join("release/graph-peer"))
}

/// Installs networkit, unless it is there, in a virtual environment. Returns its Python.
pub(super) fn networkit() -> Result<PathBuf> {
    let dir = paths::state()?.join("networkit");
    let python = dir.join("bin/python");
    let works = |python: &Path| tool::output(Command::new(python).args(["-c", "import networkit"])).is_ok();
    if !works(&python) {
        program::run(Command::new("python3").args(["-m", "venv"]).arg(&dir))?;
        program::run(Command::new(&python).args(["-m", "pip", "install", "--quiet", NETWORKIT]))?;
        ensure!(works(&python), "networkit does not start");
    }
    Ok(python)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse("3"), Some(vec![3]));
        assert_eq!(parse(""), None);
    }
}
