//! `cargo xtask bench nodes`: measures how LITE scales with the number of nodes, in a simulated cluster.

use crate::output;
use anyhow::{Context, Result};
use clap::Args;
use lab::{paths, tool};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The time limit, building included.
const LIMIT: Duration = Duration::from_secs(1800);

/// The size of the simulation, and the destination of its figures.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// Nodes that join, connect on demand, call each other and leave
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(2..=4095))]
    nodes: u16,
    /// Calls of each node, to random others
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    calls: u32,
    /// Seed that decides the destinations of calls and the order of tasks
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// File for the figures, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the cluster and prints its figures.
pub(super) fn bench(options: &Options) -> Result<()> {
    let json = options.json.as_deref().map(|path| output::beside("nodes", path)).transpose()?;
    let Options { nodes, calls, seed, .. } = options;
    eprintln!("{nodes} nodes in one process; 1000 take about half a minute and 4 GB, after the build");
    print!(
        "{}",
        simulate([u64::from(*nodes), u64::from(*calls), *seed], json.as_ref().map(|json| json.0.path()))?
    );
    if let Some((file, path)) = json {
        file.persist(&path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Runs a cluster with these numbers of nodes and of calls of each node, and this seed. Returns its report.
pub(super) fn simulate(numbers: [u64; 3], json: Option<&Path>) -> Result<String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--quiet", "--release", "--package", "sim", "--example", "scale", "--"]);
    for (name, number) in ["--nodes", "--calls", "--seed"].iter().zip(numbers) {
        cargo.args([name, number.to_string().as_str()]);
    }
    if let Some(json) = json {
        cargo.arg("--json").arg(json);
    }
    tool::run_ok(cargo.current_dir(paths::root()), &paths::state()?.join("nodes.log"), LIMIT)
}
