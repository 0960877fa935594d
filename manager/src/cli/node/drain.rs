//! `ferrolite node drain`, `undrain` and `reboot`.

use super::super::args::{ManagerArgs, seconds};
use super::super::shell;
use anyhow::{Result, bail};
use clap::Args;
use manager::client::{Client, Drain};
use platform::TimeLimit;
use proto::{NodeStanding, NodeView, PowerAction, printable};
use std::time::{Duration, Instant};

/// The pause between two looks at a node.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(in super::super) struct DrainArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The name of the node (see `node ls`).
    #[arg(add = shell::nodes())]
    node: String,
    /// The reason, which jobs that wait for the node show.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// The time after which the node's job is cancelled, as in 90s or 15m [default: the job may end].
    #[arg(long, value_name = "TIME")]
    deadline: Option<TimeLimit>,
    /// Drains the node also if no other takes jobs.
    #[arg(long)]
    force: bool,
    /// Waits for at most this time until the node is drained, in seconds.
    #[arg(long, value_name = "S", value_parser = seconds)]
    wait: Option<u64>,
}

#[derive(Debug, Args)]
pub(in super::super) struct RebootArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The name of the node (see `node ls`).
    #[arg(add = shell::nodes())]
    node: String,
    /// The longest time to wait until the node has joined again, in seconds.
    #[arg(long, value_name = "S", default_value_t = 300, value_parser = seconds)]
    timeout: u64,
}

#[derive(Debug, Args)]
pub(in super::super) struct UndrainArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The name of the node (see `node ls`).
    #[arg(add = shell::nodes())]
    node: String,
}

pub(super) fn undrain(args: &UndrainArgs) -> Result<()> {
    let standing = args.manager.connect()?.undrain(&args.node)?;
    println!("{} is {}", printable(&args.node), standing.word());
    Ok(())
}

pub(super) fn drain(args: &DrainArgs) -> Result<()> {
    let DrainArgs { manager, node, reason, deadline, force, wait } = args;
    let deadline = deadline.map(TimeLimit::get);
    let drain = Drain { node: node.clone(), reason: reason.clone(), deadline, force: *force };
    let mut client = manager.connect()?;
    let standing = client.drain(&drain)?;
    let Some(wait) = wait.map(Duration::from_secs) else {
        println!("{} is {}", printable(node), standing.word());
        return Ok(());
    };
    let is_drained = |node: &NodeView| matches!(node.standing, NodeStanding::Drained(_));
    if !wait_until(&mut client, node, wait, is_drained)? {
        bail!("{} is not drained within {} s; it goes on to drain", printable(node), wait.as_secs());
    }
    println!("{} is drained", printable(node));
    Ok(())
}

/// Looks at a node until `reached` is true of it. Returns false if that does not happen in time.
fn wait_until(
    client: &mut Client,
    name: &str,
    limit: Duration,
    reached: impl Fn(&NodeView) -> bool,
) -> Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        if client.node_list()?.iter().any(|node| node.name == name && reached(node)) {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(LOOK);
    }
}

pub(super) fn reboot(args: &RebootArgs) -> Result<()> {
    let RebootArgs { manager, node, timeout } = args;
    let mut client = manager.connect()?;
    let known = client.node_list()?.into_iter().find(|known| known.name == *node);
    let before = known.and_then(|node| node.member).map(|member| member.incarnation);
    client.power(node, PowerAction::Reset)?;
    println!("{} has left, and its machine is reset", printable(node));
    let is_new = |view: &NodeView| {
        let new = view.member.as_ref().map(|member| member.incarnation);
        new.is_some() && new != before
    };
    if !wait_until(&mut client, node, Duration::from_secs(*timeout), is_new)? {
        bail!("{} has not joined again within {timeout} s", printable(node));
    }
    println!("{} has joined again", printable(node));
    Ok(())
}
