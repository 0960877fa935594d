//! The files that a machine boots over a network: iPXE, and Debian's Linux kernel. Packages are unpacked, not
//! installed.

use super::image::kernel_package;
use crate::debian::{Apt, apt};
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The suite of the packages. Its iPXE drives a ConnectX-3; that of Debian 12 (of 2019) does not find the
/// card.
const SUITE: &str = "trixie";

/// The files, in a cache directory.
#[derive(Clone, Debug)]
pub struct Netboot {
    /// iPXE in the format of a Linux kernel for a BIOS boot loader (`ipxe.lkrn`).
    pub ipxe: PathBuf,
    /// The bzImage of a Linux kernel.
    pub kernel: PathBuf,
}

impl Netboot {
    /// Downloads the files that are missing in the cache directory.
    pub fn get(cache_dir: &Path) -> Result<Self> {
        fs::create_dir_all(cache_dir).with_context(|| format!("cannot create {}", cache_dir.display()))?;
        let lock = File::create(cache_dir.join("lock")).context("cannot create the cache's lock")?;
        lock.lock().context("cannot lock the cache")?;
        let (ipxe, kernel) = (cache_dir.join("ipxe.lkrn"), cache_dir.join("vmlinuz"));
        if !ipxe.is_file() {
            let apt = Apt::of_suites(&cache_dir.join("apt"), &[SUITE])?;
            take(&apt, cache_dir, "ipxe", |root| Ok(root.join("usr/lib/ipxe/ipxe.lkrn")), &ipxe)?;
        }
        if !kernel.is_file() {
            let apt = Apt::host();
            take(&apt, cache_dir, &kernel_package(&apt)?, bzimage, &kernel)?;
        }
        Ok(Self { ipxe, kernel })
    }
}

/// Returns the bzImage of an unpacked kernel package.
fn bzimage(root: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(root.join("boot")).context("a kernel package without /boot")?;
    let mut paths = files.filter_map(|entry| Some(entry.ok()?.path()));
    let is_image = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("vmlinuz-"))
    };
    paths.find(is_image).context("a kernel package without a kernel")
}

/// Copies a file from the newest version of a package.
fn take(
    apt: &Apt,
    cache_dir: &Path,
    package: &str,
    file: impl Fn(&Path) -> Result<PathBuf>,
    to: &Path,
) -> Result<()> {
    let work = tempfile::Builder::new().prefix("netboot-").tempdir_in(cache_dir)?;
    let names = apt.candidates(&[package.to_owned()])?;
    apt.download(&[package.to_owned()], work.path())?;
    let root = work.path().join("root");
    for name in &names {
        apt::unpack(&work.path().join(name), &root)?;
    }
    let part = work.path().join("part");
    let from = file(&root)?;
    fs::copy(&from, &part).with_context(|| format!("cannot copy {} of {package}", from.display()))?;
    fs::rename(&part, to).with_context(|| format!("cannot write {}", to.display()))
}
