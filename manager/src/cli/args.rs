//! Arguments that several commands share, and the parsers of their values.

use super::context::{chosen, variable};
use anyhow::{Context, Result};
use clap::Args;
use manager::client::{Client, Output};
use manager::key::Credential;
use platform::TimeLimit;
use proto::{ByteRate, JobId, parse_bytes};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The place of the cluster key.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    /// The file with the cluster key: 64 hexadecimal digits, after `client:` or `node:` if it is the key of
    /// one role alone. Only its owner may have access to it [default: cluster.key in the state directory].
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl KeyArgs {
    pub(super) const fn is_named(&self) -> bool {
        self.key_file.is_some()
    }

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
#[derive(Debug, Default, Args)]
pub(super) struct ManagerArgs {
    /// The manager's address, or the addresses of several managers, which commas separate
    /// [default: $FERROLITE_MANAGER, that of the context, or 127.0.0.1:18500].
    #[arg(long, value_name = "HOST:PORT")]
    manager: Option<String>,
    /// The file with a user's key, the cluster key, or the cluster's key for clients. Only its owner may have
    /// access to it [default: $FERROLITE_KEY_FILE, that of the context, or cluster.key in the state
    /// directory].
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The context of `~/.config/ferrolite/config.toml` [default: $FERROLITE_CONTEXT, or the one that the
    /// file names].
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl ManagerArgs {
    /// Connects to the manager.
    pub(super) fn connect(&self) -> Result<Client> {
        let manager = match self.manager.clone().or_else(|| variable("FERROLITE_MANAGER")) {
            Some(manager) => manager,
            None => {
                let context = chosen(self.context.as_deref())?;
                context.manager.unwrap_or_else(|| "127.0.0.1:18500".into())
            }
        };
        Ok(Client::connect(&manager, self.credential()?)?)
    }

    /// Reads the key.
    pub(super) fn credential(&self) -> Result<Credential> {
        Ok(Credential::load(&self.key_path(None)?)?)
    }

    /// Returns the path of the key file. `state` is the directory in which it is without --key-file, if the
    /// command names one.
    pub(super) fn key_path(&self, state: Option<&Path>) -> Result<PathBuf> {
        if let Some(file) = &self.key_file {
            return Ok(file.clone());
        }
        if let Some(state) = state {
            return Ok(state.join("cluster.key"));
        }
        if let Some(file) = variable("FERROLITE_KEY_FILE") {
            return Ok(file.into());
        }
        match chosen(self.context.as_deref())?.key_file {
            Some(file) => Ok(file),
            None => Ok(default_state()?.join("cluster.key")),
        }
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

/// Parses a lease in etcd, in seconds. etcd makes none shorter than 2 s.
pub(super) fn ttl(text: &str) -> Result<u64, String> {
    number(text, 2, 60)
}

/// Parses a number of bytes, as in 500MB or 16GiB.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| format!("{text} is no number of bytes: want one as in 500MB or 16GiB"))
}

/// Parses a number of bytes per second, as in 500MB/s.
pub(super) fn rate(text: &str) -> Result<u64, String> {
    text.parse().map(ByteRate::get).map_err(|error| format!("{text} is no rate: {error}"))
}

/// Parses a number of operations that may be outstanding.
pub(super) fn outstanding(text: &str) -> Result<u32, String> {
    number(text, 1, 65_535)
}

/// Parses the time for which something is kept, as in 12h or 7d.
pub(super) fn days(text: &str) -> Result<Duration, String> {
    const LONGEST: u64 = 3660;
    let days = text.strip_suffix('d').and_then(|digits| digits.parse::<u64>().ok());
    let days = days.filter(|days| *days <= LONGEST).map(|days| Duration::from_secs(days * 24 * 3600));
    let time = days.or_else(|| text.parse().ok().map(TimeLimit::get));
    time.ok_or_else(|| format!("{text} is no time: want one as in 90s, 12h or 7d"))
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
