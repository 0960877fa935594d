//! The boot stub (`image/stub`), built like the kernel by a cargo invocation of its own.

use super::target;
use crate::{paths, setup};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

/// Builds the stub, and returns its ELF file.
pub fn stub(run: impl FnOnce(&mut Command) -> Result<()>) -> Result<PathBuf> {
    build("stub", run)
}

/// Builds the loader for tests, and returns its ELF file.
pub fn test_loader(run: impl FnOnce(&mut Command) -> Result<()>) -> Result<PathBuf> {
    build("test-loader", run)
}

fn build(program: &str, run: impl FnOnce(&mut Command) -> Result<()>) -> Result<PathBuf> {
    setup::binutils()?;
    let mut cargo = stub_cargo("build");
    cargo.args(["--release", "--locked", "--bin", program]);
    run(&mut cargo).with_context(|| format!("{program} does not build in {}", paths::root().display()))?;
    Ok(directory().join("release").join(program))
}

/// Returns cargo for the stub's workspace.
pub fn stub_cargo(subcommand: &str) -> Command {
    let mut cargo = super::cargo_in("image/stub", subcommand);
    cargo.env("CARGO_TARGET_DIR", directory());
    cargo
}

/// Returns the stub's own target directory.
fn directory() -> PathBuf {
    target().join("stub")
}
