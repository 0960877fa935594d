//! Loaders and programs of Debian packages, which are unpacked and not installed.

use anyhow::{Context, Result};
use lab::{paths, tool};
use qemu::Packages;
use std::path::Path;
use std::process::Command;

/// The packages with the loaders of `iso`, `pxe` and `uki`, and the program that signs.
const PACKAGES: [&str; 6] =
    ["ipxe", "isolinux", "pxelinux", "sbsigntool", "syslinux-common", "systemd-boot-efi"];
const SBSIGN: &str = "sbsign";

fn packages() -> Result<Packages> {
    let packages = Packages::get(&paths::target().join("image-tools"), &PACKAGES);
    packages.with_context(|| format!("this needs Debian's packages {}", PACKAGES.join(", ")))
}

/// Returns a file of a package.
pub(super) fn file(path: &str) -> Result<Vec<u8>> {
    super::read(&packages()?.path(path)?)
}

/// Returns an EFI program with a signature.
pub(super) fn sign(program: &[u8], key: &Path, certificate: &Path) -> Result<Vec<u8>> {
    let dir = tempfile::tempdir()?;
    let (from, to) = (dir.path().join("unsigned"), dir.path().join("signed"));
    std::fs::write(&from, program)?;
    let mut command =
        if tool::exists(SBSIGN) { Command::new(SBSIGN) } else { packages()?.command(SBSIGN)? };
    command.arg("--key").arg(key).arg("--cert").arg(certificate).arg("--output").arg(&to).arg(&from);
    tool::output(&mut command).context("--sign")?;
    super::read(&to)
}
