//! The version of a boot file: a text for people, which the file contains.

use lab::image::Apps;
use lab::{paths, tool};
use std::process::Command;

/// The digits of a commit's name.
const DIGITS: &str = "--short=12";

/// Returns the version, the commit, and the configuration of the build.
pub(super) fn of(apps: &Apps) -> String {
    let commit = commit().unwrap_or_else(|| "unknown commit".to_owned());
    format!("{} ferrolite ({commit}) apps={apps}", env!("CARGO_PKG_VERSION"))
}

/// Returns the name of the commit, with `+` if the sources have changed since; `None` without git.
fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = tool::output(Command::new("git").args(args).current_dir(paths::root())).ok()?;
        Some(String::from_utf8_lossy(&output).trim().to_owned())
    };
    let name = git(&["rev-parse", DIGITS, "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { name } else { format!("{name}+") })
}
