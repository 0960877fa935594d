//! The commands `power` and `boot`.

use super::ManagerArgs;
use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use proto::PowerAction;
use std::path::PathBuf;

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
    /// The name of the node (see `nodes`).
    node: String,
}

#[derive(Debug, Args)]
pub(super) struct BootArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The name of the node (see `nodes`).
    node: String,
    /// The image: a file of `cargo xtask image --format elf`.
    file: PathBuf,
}

pub(super) fn power(args: &PowerArgs) -> Result<()> {
    let action = match args.action {
        ActionWord::Off => PowerAction::Off,
        ActionWord::Reset => PowerAction::Reset,
    };
    Ok(args.manager.connect()?.power(&args.node, action)?)
}

pub(super) fn boot(args: &BootArgs) -> Result<()> {
    let name = args.file.display();
    let image = std::fs::read(&args.file).map_err(|error| anyhow!("cannot read {name}: {error}"))?;
    Ok(args.manager.connect()?.boot(&args.node, &image)?)
}
