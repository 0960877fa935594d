//! `cargo xtask new-app`: an application of one's own, made from `apps/template`.

mod name;
mod tree;

use anyhow::{Context, Result};
use clap::Args;
use lab::{cargo, image, interrupt, tool};
use name::Name;
use std::process::Command;
use tree::Changes;

/// The name of the application.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Name of the application, of its crate and of its folder below `apps/`: lower-case letters, digits and
    /// hyphens
    #[arg(value_name = "NAME")]
    name: Name,
}

/// Makes a crate, adds it to the workspace and to the table of applications, and runs its tests. After a
/// failure nothing is left of it.
pub(crate) fn new_app(options: &Options) -> Result<()> {
    let name = &options.name;
    name.check_crates()?;
    interrupt::watch()?;
    name.check_applications(&applications()?)?;
    let mut changes = Changes::default();
    match make(name, &mut changes) {
        Ok(()) => {
            println!("apps/{name} is made and tested; docs/writing-apps.md explains it. To run it:");
            println!("  cargo xtask run --app {name}");
            Ok(())
        }
        Err(error) => {
            changes.undo()?;
            Err(error)
        }
    }
}

/// Returns the names of all applications of the table.
fn applications() -> Result<Vec<String>> {
    let mut names = cargo::host("run");
    let names = tool::output(names.args(["--quiet", "--package", "applications", "--example", "names"]))?;
    Ok(String::from_utf8_lossy(&names).lines().map(str::to_owned).collect())
}

fn make(name: &Name, changes: &mut Changes) -> Result<()> {
    tree::write(name, changes)?;
    let visible = |command: &mut Command, what: &str| {
        tool::run_visible(command).with_context(|| what.to_owned()).and_then(|()| interrupt::check())
    };
    visible(cargo::host("fmt").args(["--package", name.text(), "--package", "applications"]), "cargo fmt")?;
    // The lock files of both workspaces list the new crate. Packages of other systems are not downloaded.
    for mut command in [cargo::host("metadata"), image::cargo("metadata")] {
        command.args(["--format-version", "1", "--filter-platform", cargo::TARGET]);
        tool::output(&mut command).context("cargo metadata")?;
    }
    visible(cargo::host("test").args(["--package", name.text()]), "the new application fails its tests")
}
