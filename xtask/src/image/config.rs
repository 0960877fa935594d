//! The configuration that is built into a boot file: a cpio archive, like the initial RAM disk of a loader.

use anyhow::{Result, anyhow};
use proto::channel::ClusterKey;
use std::path::Path;

/// The names of the files in the archive.
const CONFIG: &str = "ferrolite/config";
const KEY: &str = "ferrolite/key";

/// Returns the built-in module with a configuration and a cluster key; nothing if there is neither.
pub(super) fn module(config: Option<&Path>, key: Option<&Path>) -> Result<Vec<u8>> {
    let config = config.map(read_config).transpose()?;
    let key = key.map(read_key).transpose()?;
    let files: Vec<_> = [(CONFIG, &config), (KEY, &key)]
        .into_iter()
        .filter_map(|(name, content)| Some((name, content.as_deref()?)))
        .collect();
    Ok(if files.is_empty() { Vec::new() } else { bootconfig::archive(&files) })
}

/// Reads a file with the cluster key.
fn read_key(file: &Path) -> Result<Vec<u8>> {
    let text = super::read(file)?;
    ClusterKey::from_hex(&text).map_err(|why| anyhow!("{}: {why}", file.display()))?;
    Ok(text)
}

/// Reads a file with lines `key=value`, empty lines, and comments that begin with `#`.
fn read_config(file: &Path) -> Result<Vec<u8>> {
    let bytes = super::read(file)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| anyhow!("{} is no text", file.display()))?;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            bootconfig::key_of(line).map_err(|why| anyhow!("{}: line {number}: {why}", file.display()))?;
        }
    }
    Ok(bytes)
}
