//! `ferrolite data`: lists and frees datasets.

use super::args::ManagerArgs;
use super::shown::{List, LsArgs};
use super::{names, report, shell};
use anyhow::Result;
use clap::{Args, Subcommand};
use manager::core::json::datasets_json;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Lists the datasets: outputs of jobs that were kept on the nodes.
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Frees a dataset, unless a job reads it.
    Rm(RmArgs),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Ls(args) => ls(&args),
            Self::Rm(args) => Ok(args.manager.connect()?.drop_dataset(&args.name)?),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct RmArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The name of the dataset (see `data ls`).
    #[arg(add = shell::datasets())]
    name: String,
}

fn ls(args: &LsArgs) -> Result<()> {
    args.list.show(|| {
        let mut client = args.manager.connect()?;
        let datasets = client.datasets()?;
        let names = names(&mut client)?;
        Ok(List { table: report::datasets_table(&datasets, &names), json: datasets_json(&datasets, &names) })
    })
}
