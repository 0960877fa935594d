//! The programs of the GAP benchmark suite, which are given by a directory and never built here.

use super::Algorithm;
use super::graph::Graph;
use super::machine::Machine;
use super::results;
use crate::bench::program;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The greatest accepted difference of a rank in parts of it: GAP computes in f32.
const RANK: f64 = 1e-3;

/// The number of trials in one process, of which the last counts: memory is touched for the first time in the
/// first.
const TRIALS: &str = "3";

/// The programs, and the graph in their own form.
pub(super) struct Gap {
    dir: PathBuf,
    machine: Machine,
    cpus: Vec<u32>,
    plain: PathBuf,
    weighted: PathBuf,
    edges: u64,
    vertices: u64,
    source: u64,
    /// The output of the latest run.
    said: String,
}

impl Gap {
    /// Converts the graph.
    pub(super) fn new(dir: &Path, graph: &Graph, machine: Machine, cpus: &[u32]) -> Result<Self> {
        let dir = std::fs::canonicalize(dir).with_context(|| format!("there is no {}", dir.display()))?;
        let (plain, weighted) = (graph.plain().with_extension("sg"), graph.weighted().with_extension("wsg"));
        let convert = |from: PathBuf, to: &Path, weights: &[&str]| {
            let mut converter = Machine::Native.command(&dir.join("converter"), cpus);
            // Without -s the edges would lead in one direction only.
            program::run(converter.arg("-s").args(weights).arg("-f").arg(from).arg("-b").arg(to))
        };
        convert(graph.plain(), &plain, &[])?;
        convert(graph.weighted(), &weighted, &["-w"])?;
        let Graph { edges, vertices, source, .. } = *graph;
        Ok(Self {
            dir,
            machine,
            cpus: cpus.to_vec(),
            plain,
            weighted,
            edges,
            vertices,
            source,
            said: String::new(),
        })
    }

    fn command(&self, algorithm: Algorithm) -> Command {
        let (name, file) = match algorithm {
            Algorithm::PageRank => ("pr_spmv", &self.plain),
            Algorithm::Sssp => ("sssp", &self.weighted),
            _ => (algorithm.name(), &self.plain),
        };
        let mut command = self.machine.command(&self.dir.join(name), &self.cpus);
        // -a prints what there is to compare.
        command.env("OMP_NUM_THREADS", "1").arg("-f").arg(file).args(["-n", TRIALS, "-a"]);
        match algorithm {
            // No tolerance is reached.
            Algorithm::PageRank => command.args(["-i", "20", "-t", "0"]),
            Algorithm::Bfs => command.args(["-r", &self.source.to_string()]),
            // The width of a bucket for weights from 1 to 255.
            Algorithm::Sssp => command.args(["-d", "32", "-r", &self.source.to_string()]),
            Algorithm::Cc | Algorithm::Tc => &mut command,
        };
        command
    }

    /// Runs an algorithm, and returns the seconds of its last trial.
    pub(super) fn run(&mut self, algorithm: Algorithm) -> Result<f64> {
        self.said = program::run(&mut self.command(algorithm))?;
        // GAP ends its input at the first line that it cannot read, without an error.
        let size = format!("Graph has {} nodes and {} ", self.vertices, self.edges);
        ensure!(self.said.contains(&size), "GAP has read another graph: not {size:?}");
        let time = self.said.lines().rev().find_map(|line| line.strip_prefix("Trial Time:"));
        time.and_then(|time| time.trim().parse().ok()).context("GAP prints no trial time")
    }

    /// Compares the result of the latest run with ours, as far as GAP prints it, and lets GAP verify it.
    pub(super) fn check(&self, algorithm: Algorithm, ours: &Path) -> Result<()> {
        let ours = results::read(ours)?;
        match algorithm {
            Algorithm::PageRank => return self.check_ranks(&ours),
            Algorithm::Cc => {
                let components: std::collections::BTreeSet<_> = ours.values().map(|v| v.to_bits()).collect();
                self.says(&format!("There are {} components", components.len()))?;
            }
            Algorithm::Bfs => self.says(&format!("BFS Tree has {} nodes", ours.len()))?,
            Algorithm::Sssp => self.says(&format!("SSSP Tree reaches {} nodes", ours.len()))?,
            Algorithm::Tc => {
                let total = ours.get(&0).context("there is no number of triangles")?;
                return self.says(&format!("{total} triangles"));
            }
        }
        let verified = program::run(self.command(algorithm).arg("-v"))?;
        ensure!(verified.contains("PASS"), "GAP's own check does not pass");
        Ok(())
    }

    fn says(&self, what: &str) -> Result<()> {
        let is_it = |line: &str| line.trim() == what || line.starts_with(&format!("{what} "));
        ensure!(self.said.lines().any(is_it), "GAP does not say {what:?}");
        Ok(())
    }

    /// Compares the greatest ranks, which GAP prints as `vertex:rank`.
    fn check_ranks(&self, ours: &results::Values) -> Result<()> {
        let mut compared = 0;
        for line in self.said.lines() {
            let Some((vertex, rank)) = line.split_once(':') else { continue };
            let (Ok(vertex), Ok(rank)) = (vertex.trim().parse::<u64>(), rank.trim().parse::<f64>()) else {
                continue;
            };
            let own = ours.get(&vertex).context("a vertex that is not ours")?;
            ensure!((rank - own).abs() <= RANK * own, "the rank of {vertex} is {rank}, and {own} here");
            compared += 1;
        }
        ensure!(compared > 0, "GAP prints no ranks");
        Ok(())
    }
}
