//! The machine on which all sides of a comparison run: this one, or QEMU's translation of its code.

use anyhow::{Context, Result};
use lab::{paths, setup, tool};
use serde::Serialize;
use std::path::Path;
use std::process::Command;

/// QEMU's translator (TCG) for single programs, which has no machine and no kernel of a guest.
const TRANSLATOR: &str = "qemu-x86_64";

/// The machine on which all sides run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Machine {
    Native,
    Tcg,
}

impl Machine {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Tcg => "TCG",
        }
    }

    /// Returns what is added to the name of a figure.
    pub(super) const fn remark(self) -> &'static str {
        match self {
            Self::Native => "",
            Self::Tcg => " under TCG",
        }
    }

    /// Returns a command that runs a program on some processors.
    pub(super) fn command(self, program: &Path, cpus: &[u32]) -> Command {
        let list: Vec<_> = cpus.iter().map(u32::to_string).collect();
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", &list.join(",")]);
        if self == Self::Tcg {
            command.arg(TRANSLATOR);
        }
        command.arg(program).current_dir(paths::root());
        command
    }
}

/// Ensures that the translator is there, and that it works.
pub(super) fn prepare() -> Result<()> {
    setup::programs(&[(TRANSLATOR, "qemu-user")])?;
    tool::output(Command::new(TRANSLATOR).arg("--version")).map(drop).context("the translator does not start")
}
