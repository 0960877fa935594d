//! Where things are.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The top of the repository.
pub fn root() -> PathBuf {
    // cargo says where xtask's package is now; what it said at build time serves when the program is started directly.
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.parent().map_or_else(|| package.clone(), Path::to_owned)
}

/// Cargo's directory for what it builds.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Our own directory beside it, for what is kept between runs: texts, logs, the accelerator probe's result.
pub fn state() -> Result<PathBuf> {
    made(target().join("ferrolite"))
}

/// Makes a directory unless it is there.
pub fn made(dir: PathBuf) -> Result<PathBuf> {
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}
