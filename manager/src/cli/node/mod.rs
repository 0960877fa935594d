//! `ferrolite node`: lists nodes, and changes their states, power and images.

mod drain;
mod inventory;
mod power;
mod shown;

use super::args::{ManagerArgs, count, seconds};
use super::shell;
use super::shown::{List, ListArgs};
use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
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
    /// Turns the machine of a node on, off, or off and on, resets it, or shows if it is on. A node that
    /// answers leaves the cluster first, and its machine obeys. The BMC that the inventory names does the
    /// rest: it turns on, shows, and reaches a node that does not answer.
    Power(power::PowerArgs),
    /// Shows the inventory of the manager's file against the nodes that are there: those that are absent,
    /// those that it does not list, and those that differ.
    Inventory(inventory::InventoryArgs),
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
            Self::Power(args) => power::power(&args),
            Self::Inventory(args) => inventory::inventory(&args),
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

fn boot(args: &BootArgs) -> Result<()> {
    let name = args.file.display();
    let image = std::fs::read(&args.file).map_err(|error| anyhow!("cannot read {name}: {error}"))?;
    Ok(args.manager.connect()?.boot(&args.node, &image)?)
}
