//! Commands of the manager's program, for tests of appliances.

use super::cluster::LIMIT;
use anyhow::Result;
use lab::manager::Manager;
use lab::tool;
use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Commands for the manager of a cluster, for all threads of a test.
pub(super) struct Commands<'a> {
    program: OsString,
    address: &'a str,
    key: &'a Path,
    pub(super) log: &'a Path,
}

impl<'a> Commands<'a> {
    pub(super) fn new(manager: &'a Manager, log: &'a Path) -> Self {
        Self::by(manager.client("nodes").get_program().as_ref(), manager, log)
    }

    /// Makes commands of another build than the manager's.
    pub(super) fn by(program: &Path, manager: &'a Manager, log: &'a Path) -> Self {
        Self { program: program.into(), address: manager.address(), key: manager.key(), log }
    }

    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).args(["--manager", self.address, "--key-file"]).arg(self.key);
        command
    }

    /// Returns the object that a command of a list writes.
    pub(super) fn list(&self, words: &[&str], to: &str) -> Result<Value> {
        let json = self.log.with_extension(format!("{to}.json"));
        let said = self.log.with_extension(format!("{to}.log"));
        tool::run_ok(self.command(words).arg("--json").arg(&json), &said, LIMIT)?;
        Ok(serde_json::from_slice(&std::fs::read(&json)?)?)
    }
}
