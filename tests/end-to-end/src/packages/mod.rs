//! The Debian packages: their contents, and their life on a system with systemd.

mod contents;
mod installed;
mod system;

use crate::job::xtask;
use crate::runner::{Case, Lane, Outcome};
use anyhow::{Context, Result, anyhow, bail, ensure};
use lab::{setup, tool};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use system::System;

/// The longest silence of a compiler, or of a program in a guest, on a busy host.
const LIMIT: Duration = Duration::from_secs(600);
/// The names of the packages.
const NAMES: [&str; 3] = ["ferrolite", "ferrolite-node", "ferrolite-cx3"];

/// Returns the cases. If `full`, a missing tool is a failure.
pub(crate) fn cases(full: bool) -> Vec<Case> {
    let contents = |log: &Path| contents::check(log).map(|()| Outcome::Passed);
    let installed = move |log: &Path| match System::get() {
        Ok(system) => installed::check(&system, log).map(|()| Outcome::Passed),
        Err(why) if full => Err(anyhow!(why)),
        Err(why) => Ok(Outcome::Skipped(format!("{why:#}"))),
    };
    vec![
        Case::new("packages::contents", contents).compiles(Lane::Host),
        Case::new("packages::lintian", lintian).full_if(true),
        Case::new("packages::with-etcd", with_etcd).compiles(Lane::Host).full_if(true),
        Case::new("packages::installed-upgraded-and-purged-under-systemd", installed).full_if(true),
    ]
}

/// Makes the packages in a directory, and returns their files in the order of [`NAMES`].
fn made(out: &Path, options: &[&str], log: &Path) -> Result<Vec<PathBuf>> {
    tool::run_ok(xtask().args(["package", "--out"]).arg(out).args(options), log, LIMIT)?;
    let files: Vec<PathBuf> = fs::read_dir(out)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    NAMES
        .iter()
        .map(|name| {
            let named = |file: &&PathBuf| {
                file.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&format!("{name}_")))
            };
            files.iter().find(named).cloned().with_context(|| format!("there is no package {name}"))
        })
        .collect()
}

/// Checks that the manager of a package has etcd if it was asked for.
fn with_etcd(log: &Path) -> Result<Outcome> {
    let dir = tempfile::tempdir()?;
    let files = made(&dir.path().join("packages"), &["--dev", "--etcd"], log)?;
    let [package, ..] = files.as_slice() else { bail!("no package") };
    let tree = dir.path().join("tree");
    tool::run_ok(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&tree), log, LIMIT)?;
    let file = dir.path().join("manager.toml");
    fs::write(&file, "[etcd]\nurls = ['h']\n")?;
    let checked =
        Command::new(tree.join("usr/bin/ferrolite")).args(["config", "check"]).arg(&file).output()?;
    let said = String::from_utf8_lossy(&checked.stderr);
    // A manager without etcd refuses each URL.
    ensure!(said.contains("h is no URL of etcd"), "{said}");
    Ok(Outcome::Passed)
}

/// Checks the packages that ship with Debian's own checker.
fn lintian(log: &Path) -> Result<Outcome> {
    setup::programs(&[("lintian", "lintian")])?;
    let dir = tempfile::tempdir()?;
    let files = made(dir.path(), &[], log)?;
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning"]).args(files);
    tool::run_ok(&mut lintian, log, LIMIT).map(|_| Outcome::Passed)
}
