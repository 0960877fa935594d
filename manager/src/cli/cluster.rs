//! `ferrolite cluster`: orders to the cluster as a whole.

use super::args::ManagerArgs;
use anyhow::Result;
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Makes all nodes leave the cluster and power off.
    Shutdown(ShutdownArgs),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Shutdown(args) => Ok(args.manager.connect()?.shutdown()?),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct ShutdownArgs {
    #[command(flatten)]
    manager: ManagerArgs,
}
