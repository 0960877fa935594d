//! `cargo xtask trace`: prints the events of a small simulated cluster.

use crate::output;
use anyhow::Result;
use clap::Args;
use lab::{cargo, paths, tool};
use std::path::PathBuf;
use std::time::Duration;

/// The longest time for the program, building included.
const LIMIT: Duration = Duration::from_secs(900);

/// The simulated run, and the destination of its trace.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Seed that decides the order of tasks and the lost frames
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Share of frames that are lost
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    loss: f64,
    /// File for the trace, for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the cluster and prints its timeline.
pub(crate) fn trace(options: &Options) -> Result<()> {
    anyhow::ensure!((0.0..0.5).contains(&options.loss), "--loss must be a share from 0 to below 0.5");
    let json = options.json.as_deref().map(|path| output::beside("trace", path)).transpose()?;
    let mut cargo = cargo::host("run");
    cargo.args(["--quiet", "--example", "trace", "--"]);
    cargo.args(["--seed", &options.seed.to_string(), "--loss", &options.loss.to_string()]);
    if let Some((file, _)) = &json {
        cargo.arg("--json").arg(file.path());
    }
    print!("{}", tool::run_ok(&mut cargo, &paths::state()?.join("trace.log"), LIMIT)?);
    if let Some((file, path)) = json {
        use anyhow::Context;
        file.persist(&path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
