//! Directories of the repository and of builds.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Returns the top of the repository.
pub fn root() -> PathBuf {
    // cargo sets the variable to xtask's package. If the program is started directly, the path at build time
    // is used.
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.parent().map_or_else(|| package.clone(), Path::to_owned)
}

/// Returns cargo's directory for artifacts.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Returns xtask's own directory below it, for files that are kept between runs: texts, logs, the accelerator
/// probe's result.
pub fn state() -> Result<PathBuf> {
    made(target().join("ferrolite"))
}

/// Creates a directory unless it exists.
pub fn made(dir: PathBuf) -> Result<PathBuf> {
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}
