//! The files by which the commands find the cluster of this clone: its description, its log, and a lock that
//! the process that holds the cluster keeps.

use anyhow::{Context, Result, bail};
use lab::paths;
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The description of a running cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// The process that holds the cluster.
    pub holder: u32,
    /// The manager's address.
    pub manager: String,
    /// The manager's process. It differs after the manager has been started again.
    pub manager_pid: u32,
    /// The manager's program.
    pub program: PathBuf,
    /// The file with the cluster key.
    pub key_file: PathBuf,
    /// The sockets of the fabric at which programs of this host can join, one program each.
    pub fabric_sockets: Vec<PathBuf>,
    /// The address of the dashboard, `IP:PORT`.
    pub dashboard: Option<String>,
    /// True once all nodes have joined.
    pub ready: bool,
}

impl State {
    /// Returns a command of the manager's program for this cluster.
    pub(super) fn client(&self, subcommand: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args([subcommand, "--manager", &self.manager]).arg("--key-file").arg(&self.key_file);
        command
    }
}

/// The lock of the process that holds the cluster.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "the lock ends with the file")] File);

/// The directory of a cluster's files.
#[derive(Clone, Debug)]
pub(super) struct Home(PathBuf);

impl Home {
    /// Returns the directory of the cluster with this name. It is made if it does not exist.
    pub(super) fn of(name: &str) -> Result<Self> {
        paths::made(paths::state()?.join("cluster").join(name)).map(Self)
    }

    /// Returns the directory, in which the nodes' logs are.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the file with the log of the process that holds the cluster.
    pub(super) fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// Returns the description of the running cluster.
    ///
    /// # Errors
    /// If there is none, or if it is still starting.
    pub(super) fn running(&self) -> Result<State> {
        if self.lock()?.is_some() {
            bail!("the cluster is not up: `cargo xtask cluster up` starts it");
        }
        match self.read()? {
            Some(state) if state.ready => Ok(state),
            _ => bail!("the cluster is starting or ending"),
        }
    }

    /// Returns the description, if it has been written.
    pub(super) fn read(&self) -> Result<Option<State>> {
        match std::fs::read(self.0.join("state.json")) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).context("state.json is malformed")?)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).context("cannot read state.json"),
        }
    }

    /// Writes the description: readers see the former one or this one.
    pub(super) fn write(&self, state: &State) -> Result<()> {
        let [path, unfinished] = ["state.json", "state.unfinished"].map(|name| self.0.join(name));
        std::fs::write(&unfinished, serde_json::to_vec_pretty(state)?).context("cannot write state.json")?;
        std::fs::rename(unfinished, path).context("cannot write state.json")
    }

    /// Removes the description.
    pub(super) fn remove(&self) -> Result<()> {
        match std::fs::remove_file(self.0.join("state.json")) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e).context("cannot remove state.json"),
            _ => Ok(()),
        }
    }

    /// Takes the lock. Returns `None` if another process has it.
    pub(super) fn lock(&self) -> Result<Option<Lock>> {
        let path = self.0.join("lock");
        let lock = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(Lock(lock))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(e).context("cannot lock the cluster"),
        }
    }
}
