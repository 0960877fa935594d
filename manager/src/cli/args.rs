//! Arguments that several commands share, and the parsers of their values.

use anyhow::{Context, Result};
use clap::Args;
use manager::client::{Client, Output};
use manager::key;
use proto::JobId;
use std::path::{Path, PathBuf};

/// The place of the cluster key.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    /// The file with the cluster key: 64 hexadecimal digits, after `client:` or `node:` if it is the key of
    /// one role alone. Only its owner may have access to it [default: cluster.key in the state directory].
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl KeyArgs {
    pub(super) fn path(&self, state: Option<&Path>) -> Result<PathBuf> {
        match (&self.key_file, state) {
            (Some(file), _) => Ok(file.clone()),
            (None, Some(state)) => Ok(state.join("cluster.key")),
            (None, None) => Ok(default_state()?.join("cluster.key")),
        }
    }
}

/// Returns `$XDG_STATE_HOME/ferrolite`, or `~/.local/state/ferrolite`.
pub(super) fn default_state() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("XDG_STATE_HOME")
        .or_else(|| Some(variable("HOME")?.join(".local/state")))
        .map(|state| state.join("ferrolite"))
        .context("neither HOME nor XDG_STATE_HOME is set: say --state or --key-file")
}

/// The manager to talk to, and the key for it.
#[derive(Debug, Args)]
pub(super) struct ManagerArgs {
    /// The manager's address.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:18500")]
    manager: String,
    #[command(flatten)]
    key: KeyArgs,
}

impl ManagerArgs {
    /// Connects to the manager.
    pub(super) fn connect(&self) -> Result<Client> {
        let key = key::load(&self.key.path(None)?)?;
        Ok(Client::connect(&self.manager, &key)?)
    }
}

/// Writes a file in one step: a reader sees all of it or nothing.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut output = Output::create(path)?;
    output.write(bytes)?;
    Ok(output.finish()?)
}

/// Parses a number from `least` to `most`.
fn number<T: TryFrom<u64>>(text: &str, least: u64, most: u64) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    let number = number.and_then(|number: u64| T::try_from(number).ok());
    number.ok_or_else(|| format!("want a number from {least} to {most}"))
}

/// Parses a number of nodes.
pub(super) fn count(text: &str) -> Result<u16, String> {
    number(text, 1, 4095)
}

/// Parses a lease, in milliseconds.
pub(super) fn lease_ms(text: &str) -> Result<u64, String> {
    number(text, 100, 600_000)
}

/// Parses a time to wait, in seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    number(text, 0, 1_000_000_000)
}

/// Parses the interval of a repeated list, in seconds.
pub(super) fn interval(text: &str) -> Result<u64, String> {
    number(text, 1, 86_400)
}

/// Parses the number of a job.
pub(super) fn job_id(text: &str) -> Result<JobId, String> {
    text.parse().map(JobId).map_err(|_| format!("{text} is not a number of a job"))
}
