//! `cargo xtask cluster`: a cluster of appliances and Linux nodes on this host, which stays up.

mod hold;
mod nodes;
mod state;
mod status;
mod submit;
mod up;

use anyhow::Result;
use clap::{Args, Subcommand};
use state::Home;

/// The options of `cargo xtask cluster`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Name of the cluster: each has its own, so that several can be up
    #[arg(long, global = true, value_name = "NAME", default_value = "default", value_parser = name)]
    name: String,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Clone, Debug)]
enum Verb {
    /// Starts the cluster: a manager, appliances in QEMU, Linux nodes; returns when all have joined
    Up(hold::Options),
    /// Lists the nodes, and what a program needs to join or to submit jobs
    Status(status::Options),
    /// Runs a job on the cluster
    Submit(submit::Options),
    /// Ends all nodes and the manager
    Down,
    /// Is the process that holds the cluster; `up` starts it
    #[command(hide = true)]
    Hold(hold::Options),
}

/// Performs a command.
pub(crate) fn cluster(options: &Options) -> Result<()> {
    let home = Home::of(&options.name)?;
    match &options.verb {
        Verb::Up(nodes) => up::up(&home, &options.name, nodes),
        Verb::Status(options) => status::status(&home, options),
        Verb::Submit(options) => submit::submit(&home, options),
        Verb::Down => up::down(&home),
        Verb::Hold(options) => hold::hold(&home, options),
    }
}

/// Parses a name, which is that of a directory.
fn name(text: &str) -> Result<String, String> {
    let is_word = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if is_word { Ok(text.into()) } else { Err("want letters, digits and hyphens".into()) }
}
