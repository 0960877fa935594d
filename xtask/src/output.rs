//! Files for results: complete at the end, or absent.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Creates a temporary file beside the target. It is created before the work, so that a target that cannot be
/// written is found early, and renamed at the end, so that the target is complete or absent.
pub(crate) fn beside(what: &str, path: &Path) -> Result<(NamedTempFile, PathBuf)> {
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let context = || format!("cannot write the {what} {}", path.display());
    if path.is_dir() {
        return Err(std::io::Error::from(std::io::ErrorKind::IsADirectory)).with_context(context);
    }
    let file = tempfile::Builder::new().prefix(".ferrolite-").permissions(mode(0o644)).tempfile_in(dir);
    Ok((file.with_context(context)?, path.to_owned()))
}

fn mode(bits: u32) -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(bits)
}
