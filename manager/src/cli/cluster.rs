//! `ferrolite cluster`: orders to the cluster as a whole.

use super::args::{ManagerArgs, write_whole};
use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Makes all nodes leave the cluster and power off.
    Shutdown(ShutdownArgs),
    /// Writes everything that helps to find a fault to a file: versions, configuration, and the counters,
    /// boot charts, cards and logs of all nodes. It holds no key.
    Support(SupportArgs),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Shutdown(args) => Ok(args.manager.connect()?.shutdown()?),
            Self::Support(args) => support(&args),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct ShutdownArgs {
    #[command(flatten)]
    manager: ManagerArgs,
}

#[derive(Debug, Args)]
pub(super) struct SupportArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The file, which becomes one JSON object.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

fn support(args: &SupportArgs) -> Result<()> {
    let manager: Value = serde_json::from_slice(&args.manager.connect()?.support()?)?;
    let count = |list: &str| manager[list].as_array().map_or(0, Vec::len);
    let (nodes, jobs) = (count("nodes"), count("jobs"));
    let taken = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let report = json!({
        "client": { "version": env!("CARGO_PKG_VERSION"), "protocol": proto::PROTOCOL_VERSION, "taken": taken },
        "manager": manager,
    });
    let text = serde_json::to_vec_pretty(&report)?;
    write_whole(&args.file, &text)?;
    println!("{nodes} nodes and {jobs} jobs, {} bytes in {}", text.len(), args.file.display());
    Ok(())
}
