//! The command line of the daemon.

use crate::settings::LiteOptions;
use anyhow::{Context, Result, anyhow, bail};
use clap::{Parser, ValueEnum};
use lite_node::{Clock, Nic, Node, Options};
use manager::key;
use proto::channel::Role;
use runtime::End;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The time limit of a join.
const JOIN_WITHIN: Duration = Duration::from_secs(10);
/// The time that calls and operations in flight may take to end when the node leaves.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// Joins a Ferrolite cluster as a node and takes part in its jobs, until the cluster ends it or SIGINT or
/// SIGTERM comes.
#[derive(Debug, Parser)]
#[command(version, about, args_override_self = true)]
pub(crate) struct Cli {
    /// The manager's address; commas separate the addresses of several managers.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:18500")]
    manager: String,
    /// The file with the cluster key, 64 hexadecimal digits, readable by its owner only.
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    /// The node's name in the cluster [default: the host's name].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Keeps the node's number for its name, so that it is the same when the node joins again.
    #[arg(long)]
    keep_id: bool,
    /// The RNIC.
    #[arg(long, value_enum, default_value_t = NicKind::Ibverbs)]
    nic: NicKind,
    /// The RDMA device, as `rdma link` names it, for --nic ibverbs [default: the first with an active port].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The IP address of the RDMA port to use, for --nic ibverbs [default: its first].
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// The fabric's Unix socket, for --nic softroce.
    #[arg(long, value_name = "PATH", required_if_eq("nic", "softroce"))]
    fabric_socket: Option<PathBuf>,
    /// The memory that the node gives to the cluster, in bytes or with K, M or G.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    memory: u64,
    /// Threads for applications [default: the number of processors].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    cpus: Option<u16>,
    /// Logs debug messages on standard error.
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    lite: LiteOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NicKind {
    /// A card, or Linux' SoftRoCE (rdma_rxe), through libibverbs.
    Ibverbs,
    /// RDMA in software, over a fabric of virtual machines.
    Softroce,
}

/// Parses a size in bytes, with K, M or G.
fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) => (digits, 10 * (1 + "KMG".find(text.chars().last().unwrap_or('K')).unwrap_or(0))),
        None => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text} is no size: want bytes, or K, M or G"))?;
    let bytes = number.checked_mul(1 << unit).ok_or_else(|| format!("{text} is beyond all memory"))?;
    if !(LEAST_MEMORY..=MOST_MEMORY).contains(&bytes) {
        return Err(format!("a node gives {} MiB to {} GiB", LEAST_MEMORY >> 20, MOST_MEMORY >> 30));
    }
    Ok(bytes)
}

/// The least memory of a node, in bytes: LITE's own pools take some of it.
const LEAST_MEMORY: u64 = 16 << 20;
const MOST_MEMORY: u64 = 1 << 40;

impl Cli {
    /// Joins the cluster, serves jobs, and leaves.
    pub(crate) fn run(self) -> Result<()> {
        let level = if self.verbose { log::LevelFilter::Debug } else { log::LevelFilter::Info };
        lite_node::keep_log(env_logger::Builder::new().filter_level(level).build(), level)?;
        let lite = self.lite.config()?;
        let key = key::load(&self.key_file)?;
        // The role is checked before the devices, which do not matter with a client's key.
        key.for_role(Role::Node)?;
        let name = match self.name {
            Some(name) => name,
            None => host_name()?,
        };
        let clock = Clock::start();
        let nic = match self.nic {
            NicKind::Ibverbs => Nic::ibverbs(self.device, self.address, self.memory)?,
            NicKind::Softroce => {
                let socket = self.fabric_socket.context("--nic softroce needs --fabric-socket")?;
                Nic::softroce(&socket, self.memory)?
            }
        };
        let cpus = self
            .cpus
            .map_or_else(|| thread::available_parallelism().map_or(1, std::num::NonZero::get), usize::from);
        let apps = applications::all();
        let options = Options {
            manager: self.manager,
            key,
            name,
            keep_id: self.keep_id,
            cpus,
            apps: apps.iter().map(|app| app.manifest()).collect(),
            lite,
            join_within: JOIN_WITHIN,
        };
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let node = Arc::new(Node::join(clock, nic, options)?);
        // A unit of systemd may wait until the node has joined.
        sd_notify::notify(&[sd_notify::NotifyState::Ready])
            .context("systemd cannot be told that the node has joined")?;
        let stopped = Arc::new(AtomicBool::new(false));
        let watcher = {
            let (node, stopped) = (Arc::downgrade(&node), stopped.clone());
            move || {
                if let Some(signal) = signals.forever().next()
                    && let Some(node) = node.upgrade()
                {
                    log::info!("leaving because of signal {signal}");
                    stopped.store(true, Ordering::SeqCst);
                    leave(&node);
                }
            }
        };
        thread::Builder::new().name("signals".into()).spawn(watcher)?;
        match node.serve(apps) {
            End::Shutdown => {
                log::info!("the manager has ended this node");
                leave(&node);
            }
            End::Lost if stopped.load(Ordering::SeqCst) => {}
            End::Lost => bail!("this node ends: it has lost its membership"),
            End::Power(_) | End::Boot => bail!("this node ends: it has no machine of its own"),
        }
        Ok(())
    }
}

/// Leaves in good order, or at the deadline.
fn leave(node: &Node) {
    if let Err(error) = node.leave(LEAVE_WITHIN) {
        log::warn!("left with calls or operations under way: {error}");
    }
}

/// Returns the name of this host.
fn host_name() -> Result<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { Err(anyhow!("this host has no name: say --name")) } else { Ok(name) }
}
