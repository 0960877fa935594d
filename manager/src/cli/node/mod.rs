//! `ferrolite node`: lists nodes, and changes their states, power and images.

mod drain;
mod shown;

use super::args::{ManagerArgs, count, seconds};
use super::shell;
use super::shown::{List, ListArgs};
use anyhow::{Result, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use proto::PowerAction;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Lists the nodes of the cluster: members, and those that are out of service.
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Shows one node.
    Show(ShowArgs),
    /// Takes a node out of service: it gets no more jobs, its present one may end, and its memory of regions
    /// moves to other nodes. The state outlives restarts of the manager and of the node.
    Drain(drain::DrainArgs),
    /// Puts a node back into service. Forgets a node that was turned off.
    Undrain(drain::UndrainArgs),
    /// Resets the machine of a node, which leaves the cluster first. Returns once the node has joined again.
    Reboot(drain::RebootArgs),
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
            Self::Show(args) => show(&args),
            Self::Drain(args) => drain::drain(&args),
            Self::Undrain(args) => drain::undrain(&args),
            Self::Reboot(args) => drain::reboot(&args),
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
        if let Some(count) = args.wait {
            client.wait_nodes(count, Duration::from_secs(args.timeout))?;
        }
        let nodes = client.node_list()?;
        Ok(List { table: shown::table(&nodes), json: shown::json(&nodes) })
    })
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The name of the node (see `node ls`).
    #[arg(add = shell::nodes())]
    node: String,
    #[command(flatten)]
    list: ListArgs,
}

fn show(args: &ShowArgs) -> Result<()> {
    args.list.show(|| {
        let node = args.manager.connect()?.node(&args.node)?;
        Ok(List { table: shown::page(&node), json: shown::node_json(&node) })
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
