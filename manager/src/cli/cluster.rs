//! `ferrolite cluster`: the cluster as a whole.

use super::args::ManagerArgs;
use super::audit;
use anyhow::Result;
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Makes all nodes leave the cluster and power off.
    Shutdown(ShutdownArgs),
    /// The audit log: who has changed what, and when.
    #[command(subcommand)]
    Audit(audit::Verb),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Shutdown(args) => Ok(args.manager.connect()?.shutdown()?),
            Self::Audit(verb) => verb.run(),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct ShutdownArgs {
    #[command(flatten)]
    manager: ManagerArgs,
}
