//! `ferrolite rollout`: replaces the image of nodes. The manager drives a rollout; these commands start,
//! watch and stop it.

use super::args::{ManagerArgs, count, seconds};
use super::image;
use super::report::{columns, hex};
use super::shown::{List, ListArgs};
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use manager::client::Client;
use manager::core::json::rollout_json;
use proto::{RolloutPlan, RolloutState, RolloutStatus, printable};
use std::time::Duration;

/// The pause between two looks at a rollout.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Makes nodes boot an image, a few at a time: the node is drained, boots in place, joins with the
    /// image's hash and checks its peers. A node that fails boots its former image again, and no more nodes
    /// begin.
    Start(StartArgs),
    /// Shows the last rollout.
    Status(StatusArgs),
    /// Lets no more nodes begin the rollout.
    Stop(ManagerOnly),
    /// Makes the nodes that the last rollout has changed boot their former image.
    Undo(UndoArgs),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Start(args) => start(&args),
            Self::Status(args) => args.list.show(|| {
                let status = args.manager.connect()?.rollout()?;
                Ok(List { table: table(status.as_ref()), json: rollout_json(status.as_ref()) })
            }),
            Self::Stop(args) => {
                print!("{}", table(args.manager.connect()?.stop_rollout()?.as_ref()));
                Ok(())
            }
            Self::Undo(args) => {
                let mut client = args.manager.connect()?;
                client.undo_rollout()?;
                end(&mut client, args.wait)
            }
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct ManagerOnly {
    #[command(flatten)]
    manager: ManagerArgs,
}

#[derive(Debug, Args)]
pub(super) struct UndoArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// Waits until the rollout has ended.
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Args)]
pub(super) struct StartArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The first digits of the SHA-256 of the image (see `image ls`).
    image: String,
    /// The name of a node. It can be given several times [default: all machines that have joined].
    #[arg(long, value_name = "NAME")]
    on: Vec<String>,
    /// The number of nodes that must have succeeded before any other begins.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    canary: u16,
    /// The maximum number of nodes that are out of service at a time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    max_unavailable: u16,
    /// The time that a node has to join with the image, and to check its peers, in seconds.
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = seconds)]
    within: u64,
    /// Waits until the rollout has ended. The rollout goes on without this command, too.
    #[arg(long)]
    wait: bool,
}

fn start(args: &StartArgs) -> Result<()> {
    let mut client = args.manager.connect()?;
    let plan = RolloutPlan {
        image: image::find(&mut client, &args.image)?,
        nodes: args.on.clone(),
        canary: args.canary,
        max_unavailable: args.max_unavailable,
        within_ms: args.within.saturating_mul(1000),
    };
    client.start_rollout(plan)?;
    end(&mut client, args.wait)
}

/// Prints the rollout, once it has ended if `wait` is true.
fn end(client: &mut Client, wait: bool) -> Result<()> {
    let mut last = String::new();
    loop {
        let status = client.rollout()?;
        let text = table(status.as_ref());
        if text != last {
            print!("{text}");
            last = text;
        }
        let Some(status) = status.filter(|_| wait) else { return Ok(()) };
        let active = status.nodes.iter().any(|(_, _, step)| step.is_active());
        match &status.state {
            RolloutState::Done => return Ok(()),
            RolloutState::Failed(reason) if !active => bail!("the rollout has failed: {}", printable(reason)),
            RolloutState::Stopped(reason) if !active => bail!("the rollout was {}", printable(reason)),
            _ => std::thread::sleep(LOOK),
        }
    }
}

fn table(status: Option<&RolloutStatus>) -> String {
    let Some(status) = status else { return "there was no rollout\n".into() };
    let word = status.state.word();
    let reason = status.state.reason().map(|why| format!(": {}", printable(why))).unwrap_or_default();
    let mut rows = vec![["node", "step", "reason"].map(String::from).to_vec()];
    rows.extend(status.nodes.iter().map(|(name, _, step)| {
        vec![printable(name), step.word().into(), step.reason().map(|why| printable(why)).unwrap_or_default()]
    }));
    let image = hex(&status.plan.image[..6]);
    format!("rollout {} of {image} is {word}{reason}\n{}", status.number, columns(&rows))
}
