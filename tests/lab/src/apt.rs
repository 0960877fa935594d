//! Debian packages: installed system-wide when running as root, otherwise unpacked beside the build.

use crate::{paths, tool};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

/// Returns true if packages can be installed: this process is root, on a Debian.
pub(crate) fn can_install() -> bool {
    rustix::process::geteuid().is_root() && tool::exists("apt-get")
}

/// Installs packages. Works as root only.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let log = log()?;
    let _turn = turn()?;
    update(&log)?;
    let mut command = apt_get();
    command.args(["install", "-y", "--no-install-recommends"]).args(packages);
    tool::run_ok(&mut command, &log, LIMIT).with_context(|| format!("see {}", log.display()))?;
    Ok(())
}

/// Fetches packages and unpacks them into `dir` without installing them. Needs no privileges.
pub(crate) fn unpack(packages: &[&str], dir: &Path) -> Result<()> {
    if !tool::exists("apt-get") || !tool::exists("dpkg") {
        bail!("this machine has no apt-get");
    }
    let log = log()?;
    let _turn = turn()?;
    let fetched = tempfile::tempdir()?;
    let fetch = || {
        let mut command = apt_get();
        command.arg("download").args(packages).current_dir(fetched.path());
        tool::run_ok(&mut command, &log, LIMIT)
    };
    if let Err(e) = fetch() {
        // The package lists may be missing or old.
        if !can_install() {
            return Err(e);
        }
        update(&log)?;
        fetch()?;
    }
    for entry in std::fs::read_dir(fetched.path())? {
        let package = entry?.path();
        tool::run_ok(Command::new("dpkg").arg("-x").arg(package).arg(dir), &log, LIMIT)?;
    }
    Ok(())
}

/// Waits until no other thread or process of this checkout uses apt, which fails when its lists are in use.
/// The turn ends when the file is closed. The wait ends, because each command of a turn has a [`LIMIT`].
fn turn() -> Result<File> {
    let path = paths::state()?.join("apt.lock");
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    file.lock().context("cannot wait for the turn to use apt")?;
    Ok(file)
}

fn update(log: &Path) -> Result<()> {
    tool::run_ok(apt_get().arg("update"), log, LIMIT).with_context(|| format!("see {}", log.display()))?;
    Ok(())
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").arg("-q");
    // Another program of the machine may be installing packages.
    command.args(["-o", "DPkg::Lock::Timeout=300"]);
    command
}

fn log() -> Result<PathBuf> {
    Ok(paths::state()?.join("apt.log"))
}
