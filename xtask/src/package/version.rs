//! The version of the packages.

use anyhow::{Context, Result};
use lab::{paths, tool};
use std::process::Command;

/// The version of a package. It grows along the history of the repository.
pub(super) struct Version {
    /// The text, as in `0.1.0+3012.g7d5828fe-1`: the version of all crates, the number of commits, the
    /// commit, and the Debian revision.
    pub(super) text: String,
    /// The time of the commit, in seconds since 1970, which all installed files have.
    pub(super) time: u64,
}

impl Version {
    /// Returns the version of the commit of the checkout.
    pub(super) fn of_checkout(revision: u32) -> Result<Self> {
        let git = |arguments: &[&str]| -> Result<String> {
            let output = tool::output(Command::new("git").args(arguments).current_dir(paths::root()));
            let output = output.context("packages are made from a git checkout")?;
            Ok(String::from_utf8_lossy(&output).trim().to_owned())
        };
        let (count, commit) =
            (git(&["rev-list", "--count", "HEAD"])?, git(&["rev-parse", "--short=8", "HEAD"])?);
        let time = git(&["log", "-1", "--format=%ct"])?.parse().context("git shows no time of the commit")?;
        Ok(Self { text: format!("{}+{count}.g{commit}-{revision}", env!("CARGO_PKG_VERSION")), time })
    }
}
