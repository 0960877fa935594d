//! `ferrolite node power`.

use super::super::args::ManagerArgs;
use super::super::shell;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use proto::{PowerAction, PowerVerb, printable};

/// A change of a machine's power, as it is written on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Word {
    /// Turns the machine on, by its BMC.
    On,
    /// Turns the machine off: by the node, or by the BMC if the node does not answer.
    Off,
    /// Turns the machine off and on, by its BMC.
    Cycle,
    /// Resets the machine: by the node, or by the BMC, which turns it off and on, if the node does not
    /// answer.
    Reset,
    /// Shows if the machine is on, by its BMC.
    Status,
}

#[derive(Debug, Args)]
pub(in super::super) struct PowerArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The change of its power.
    #[arg(value_enum)]
    action: Word,
    /// The name of the node (see `node ls`).
    #[arg(add = shell::nodes())]
    node: String,
    /// Lets the BMC do `off` or `cycle` also while the node answers: the node does not leave first, and its
    /// job fails.
    #[arg(long)]
    bmc: bool,
}

pub(super) fn power(args: &PowerArgs) -> Result<()> {
    let PowerArgs { manager, action, node, bmc } = args;
    let by_node = |action| Ok(manager.connect()?.power(node, action)?);
    let verb = match (action, bmc) {
        (Word::Off, false) => return by_node(PowerAction::Off),
        (Word::Reset, false) => return by_node(PowerAction::Reset),
        (Word::Reset, true) => bail!("`power reset` asks the node: use `power cycle --bmc`"),
        (Word::On, _) => PowerVerb::On,
        (Word::Off, true) => PowerVerb::Off,
        (Word::Cycle, _) => PowerVerb::Cycle,
        (Word::Status, _) => PowerVerb::Status,
    };
    let on = manager.connect()?.bmc(node, verb, *bmc)?;
    println!("{} is {}", printable(node), if on { "on" } else { "off" });
    Ok(())
}
