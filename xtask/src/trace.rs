//! `cargo xtask trace`: what a small simulated cluster does, event by event.

use crate::{cargo, paths, run, tool};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// How long it may take, building included.
const LIMIT: Duration = Duration::from_secs(900);

/// What to run and where the trace goes.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Decides the order of tasks and which frames are lost
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Share of the frames that are lost
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    loss: f64,
    /// Where the trace goes for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the cluster and prints its timeline.
pub fn trace(options: &Options) -> Result<()> {
    anyhow::ensure!((0.0..0.5).contains(&options.loss), "--loss is a share from 0 to below 0.5");
    let json = options.json.as_deref().map(|path| run::beside("trace", path)).transpose()?;
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
