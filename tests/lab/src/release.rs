//! The programs of the newest release, built of the clone's own history (`releases.toml`).

use crate::{paths, setup, tool};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The longest silence of git and of a compiler, on a busy host.
const SILENCE: Duration = Duration::from_secs(1800);

/// The programs of a release.
#[derive(Clone, Debug)]
pub struct Release {
    /// The version.
    pub version: String,
    /// The manager.
    pub manager: PathBuf,
    /// The daemon of Linux nodes.
    pub lite_node: PathBuf,
    /// The shipped image, without symbols.
    pub image: PathBuf,
}

/// Builds the newest release. Its directory below `target` is its own, so that no build of this commit uses a
/// file of it. Returns the reason instead if the clone lacks the release's commit.
pub fn newest(log: &Path) -> Result<Result<Release, String>> {
    let (version, commit) = recorded(&std::fs::read_to_string(paths::root().join("releases.toml"))?)?;
    if !git(&paths::root(), &["cat-file", "-e", &format!("{commit}^{{commit}}")], log)?.status.success() {
        return Ok(Err(format!(
            "the history of this clone lacks commit {commit} of release {version}: `git fetch --unshallow` gets it"
        )));
    }
    let tag = format!("refs/tags/v{version}^{{commit}}");
    let tagged = git(&paths::root(), &["rev-parse", "--verify", "--quiet", &tag], log)?;
    if tagged.status.success() {
        let tagged = tagged.output.trim();
        ensure!(tagged == commit, "the tag v{version} is {tagged}, but releases.toml has {commit}");
    }
    let dir = paths::made(paths::target().join("releases").join(&version))?;
    let source = dir.join("source");
    check_out(&commit, &source, log).with_context(|| format!("release {version} cannot be checked out"))?;
    let build = |workspace: &str, target: &str, words: &[&str]| {
        let mut cargo = cargo(&source.join(workspace), &dir.join(target));
        let built = tool::run_ok(cargo.args(words), log, SILENCE);
        built.with_context(|| format!("release {version} does not build"))
    };
    build(".", "host", &["--workspace", "--bin", "ferrolite", "--bin", "lite-node"])?;
    build("kernel", "kernel", &["--release"])?;
    setup::binutils()?;
    let image = dir.join("ferrolite.elf");
    let kernel = dir.join("kernel/release/ferrolite");
    tool::output(Command::new("strip").arg("-o").arg(&image).arg(kernel))?;
    let program = |name: &str| dir.join("host/debug").join(name);
    Ok(Ok(Release { version, manager: program("ferrolite"), lite_node: program("lite-node"), image }))
}

/// Returns the version and the commit of the last release in the record.
fn recorded(record: &str) -> Result<(String, String)> {
    let record: toml::Table = toml::from_str(record).context("releases.toml")?;
    let newest = record.get("release").and_then(|releases| releases.as_array()?.last());
    let newest = newest.context("releases.toml has no release")?;
    let text = |key: &str| {
        let value = newest.get(key).and_then(|value| value.as_str());
        value.map(str::to_owned).with_context(|| format!("the last release in releases.toml has no {key}"))
    };
    Ok((text("version")?, text("commit")?))
}

fn git(directory: &Path, words: &[&str], log: &Path) -> Result<tool::Finished> {
    tool::run(Command::new("git").arg("-C").arg(directory).args(words), log, SILENCE)
}

/// Checks a commit out into a clone that shares this one's objects and changes nothing of it.
fn check_out(commit: &str, source: &Path, log: &Path) -> Result<()> {
    let has = |directory: &Path| -> Result<bool> {
        Ok(git(directory, &["rev-parse", "HEAD"], log)?.output.trim() == commit)
    };
    if source.join(".git").exists() && has(source)? {
        return Ok(());
    }
    if source.exists() {
        std::fs::remove_dir_all(source).with_context(|| format!("cannot remove {}", source.display()))?;
    }
    let mut clone = Command::new("git");
    clone.args(["clone", "--quiet", "--shared", "--no-checkout"]).arg(paths::root()).arg(source);
    tool::run_ok(&mut clone, log, SILENCE)?;
    let done = git(source, &["checkout", "--quiet", "--detach", commit], log)?;
    ensure!(done.status.success(), "{}", done.output.trim());
    Ok(())
}

/// Returns `cargo build` for a workspace of a release.
fn cargo(workspace: &Path, target: &Path) -> Command {
    let mut command = Command::new("cargo");
    command.args(["build", "--locked"]).current_dir(workspace).env("CARGO_TARGET_DIR", target);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_release_of_the_record_is_the_newest() {
        let release = |n| format!("[[release]]\nversion = \"0.{n}.0\"\ncommit = \"c{n}\"\nprotocol = {n}\n");
        let newest = recorded(&(release(1) + &release(2))).unwrap();
        assert_eq!(newest, ("0.2.0".to_owned(), "c2".to_owned()));
        assert!(recorded("").unwrap_err().to_string().contains("has no release"));
        assert!(recorded("[[release]]\nversion = \"1\"\n").unwrap_err().to_string().contains("no commit"));
    }
}
