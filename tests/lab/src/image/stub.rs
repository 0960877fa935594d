//! The boot stub (`image/stub`), built like the kernel by a cargo invocation of its own.

use super::target;
use crate::{paths, setup};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

/// Builds the stub, and returns its ELF file.
pub fn stub(run: impl FnOnce(&mut Command) -> Result<()>) -> Result<PathBuf> {
    setup::binutils()?;
    let target = target().join("stub");
    let mut cargo = super::cargo_in("image/stub", "build");
    cargo.args(["--release", "--locked"]).env("CARGO_TARGET_DIR", &target);
    run(&mut cargo)
        .with_context(|| format!("the boot stub does not build in {}", paths::root().display()))?;
    Ok(target.join("release/stub"))
}
