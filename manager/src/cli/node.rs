//! `ferrolite node`: lists nodes, and changes their power and images.

use super::args::{ManagerArgs, count, seconds};
use super::shown::{List, ListArgs};
use super::{report, shell};
use anyhow::{Result, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use proto::PowerAction;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Lists the nodes of the cluster.
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Turns the machine of a node off, or resets it. The node leaves the cluster first. Returns once it has
    /// left.
    Power(PowerArgs),
    /// Boots another image on the machine of a node, in place: without its firmware, and with the command
    /// line, settings and key that the node has. The node checks the image, and leaves the cluster first.
    /// Returns once it has left.
    Boot(BootArgs),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Ls(args) => ls(&args),
            Self::Power(args) => power(&args),
            Self::Boot(args) => boot(&args),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct LsArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// Waits until this number of nodes have joined.
    #[arg(long, value_name = "N", value_parser = count)]
    wait: Option<u16>,
    /// The longest time to wait, in seconds.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = seconds)]
    timeout: u64,
    #[command(flatten)]
    list: ListArgs,
}

fn ls(args: &LsArgs) -> Result<()> {
    args.list.show(|| {
        let mut client = args.manager.connect()?;
        let nodes = match args.wait {
            Some(count) => client.wait_nodes(count, Duration::from_secs(args.timeout))?,
            None => client.nodes()?,
        };
        Ok(List { table: report::table(&nodes), json: report::nodes_json(&nodes) })
    })
}

/// A change of a machine's power, as it is written on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ActionWord {
    Off,
    Reset,
}

#[derive(Debug, Args)]
pub(super) struct PowerArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The change of its power.
    #[arg(value_enum)]
    action: ActionWord,
    /// The name of the node (see `node ls`).
    #[arg(add = shell::nodes())]
    node: String,
}

#[derive(Debug, Args)]
pub(super) struct BootArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The name of the node (see `node ls`).
    #[arg(add = shell::nodes())]
    node: String,
    /// The image: a file of `cargo xtask image --format elf`.
    file: PathBuf,
}

fn power(args: &PowerArgs) -> Result<()> {
    let action = match args.action {
        ActionWord::Off => PowerAction::Off,
        ActionWord::Reset => PowerAction::Reset,
    };
    Ok(args.manager.connect()?.power(&args.node, action)?)
}

fn boot(args: &BootArgs) -> Result<()> {
    let name = args.file.display();
    let image = std::fs::read(&args.file).map_err(|error| anyhow!("cannot read {name}: {error}"))?;
    Ok(args.manager.connect()?.boot(&args.node, &image)?)
}
