//! Directories of the repository and of builds.

use anyhow::{Context, Result};
use std::path::PathBuf;

/// Returns the top of the repository.
#[must_use]
pub fn root() -> PathBuf {
    // cargo sets the variable to the package that it runs. If the program is started directly, the path at
    // build time is used.
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    // Only the workspace itself has a lock file.
    package.ancestors().find(|dir| dir.join("Cargo.lock").is_file()).unwrap_or(&package).to_owned()
}

/// Returns cargo's directory for artifacts.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Returns Ferrolite's own directory below [`target`], for files that are kept between runs: texts, logs, the
/// accelerator probe's result.
pub fn state() -> Result<PathBuf> {
    made(target().join("ferrolite"))
}

/// Creates a directory unless it exists.
pub fn made(dir: PathBuf) -> Result<PathBuf> {
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}
