//! Formatting, Clippy, documentation, and builds.

use super::cases::{Case, Outcome};
use crate::run::manager;
use crate::{image, paths, tool};
use anyhow::Result;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(900);

/// The two workspaces, which no single cargo invocation may mix.
#[derive(Clone, Copy)]
enum Workspace {
    Host,
    Kernel,
}

impl Workspace {
    fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Kernel => "kernel",
        }
    }

    fn cargo(self, subcommand: &str) -> Command {
        match self {
            Self::Kernel => image::cargo(subcommand),
            Self::Host => {
                let mut command = Command::new("cargo");
                command.arg(subcommand).current_dir(paths::root());
                command
            }
        }
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for workspace in [Workspace::Host, Workspace::Kernel] {
        let name = workspace.name();
        cases.push(Case::new(format!("lint::format-{name}"), move |log| {
            check(workspace.cargo("fmt").args(["--all", "--check"]), log)
        }));
        cases.push(Case::new(format!("lint::clippy-{name}"), move |log| {
            let mut command = workspace.cargo("clippy");
            command.args(["--quiet", "--workspace"]);
            // The kernel's tests run in QEMU, so it has no test targets.
            if matches!(workspace, Workspace::Host) {
                command.args(["--all-targets", "--features", "ibverbs/libibverbs"]);
            }
            check(command.args(["--", "-D", "warnings"]), log)
        }));
        cases.push(Case::new(format!("lint::doc-{name}"), move |log| {
            let mut command = workspace.cargo("doc");
            command.args(["--quiet", "--workspace", "--no-deps", "--document-private-items"]);
            if matches!(workspace, Workspace::Host) {
                command.args(["--features", "ibverbs/libibverbs"]);
            }
            check(command.env("RUSTDOCFLAGS", "-D warnings"), log)
        }));
    }
    // Without what builds the bindings to libibverbs, which the others have.
    cases.push(Case::new("lint::clippy-ibverbs-bare", |log| {
        let mut command = Workspace::Host.cargo("clippy");
        check(command.args(["--quiet", "--package", "ibverbs", "--", "-D", "warnings"]), log)
    }));
    cases
}

/// What the tests that boot machines need, built as users build it. Building checks the image's size, and that there is
/// no `syscall` in it.
pub fn builds() -> Vec<Case> {
    let image = |log: &Path| {
        image::build_with(|cargo| tool::run_ok(cargo, log, LIMIT).map(drop)).map(|_| Outcome::Passed)
    };
    let manager = |log: &Path| {
        manager::build_with(|cargo| tool::run_ok(cargo, log, LIMIT).map(drop)).map(|_| Outcome::Passed)
    };
    vec![Case::new("build::image-size-and-syscalls", image), Case::new("build::manager", manager)]
}

fn check(command: &mut Command, log: &Path) -> Result<Outcome> {
    tool::run_ok(command, log, LIMIT).map(|_| Outcome::Passed)
}
