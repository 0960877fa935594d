//! `ferrolite pxe`: the boot service.

use super::args::KeyArgs;
use super::signals;
use anyhow::Result;
use clap::{Args, Subcommand};
use manager::key;
use manager::pxe::{self, Service};
use std::net::Ipv4Addr;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Boots the nodes of an inventory by PXE, and gives each the key of a node for a token. Answers beside
    /// the network's DHCP server, and never a machine that is not in the inventory.
    Serve(ServeArgs),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Serve(args) => serve(args),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// The inventory of the nodes.
    #[arg(long, value_name = "FILE", default_value = "cluster.toml")]
    cluster: PathBuf,
    /// The interface of the network on which machines boot.
    #[arg(long, value_name = "NAME")]
    interface: String,
    /// This host's address on that network.
    #[arg(long, value_name = "IP")]
    address: Ipv4Addr,
    #[command(flatten)]
    key: KeyArgs,
}

fn serve(args: ServeArgs) -> Result<()> {
    let key = key::load(&args.key.path(None)?)?;
    let ServeArgs { cluster, interface, address, .. } = args;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = signals::stopped(true)?;
        let service = Service::bind(pxe::Options { cluster, interface, address, key }).await?;
        eprintln!("boots nodes by PXE on {address}");
        signals::tell_systemd_ready()?;
        service.serve(stop).await;
        Ok(())
    })
}
