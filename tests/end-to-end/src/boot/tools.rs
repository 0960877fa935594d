//! Firmware, boot loaders and tools from Debian packages, unpacked and not installed.

use anyhow::{Context, Result};
use lab::paths;
use qemu::Packages;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The packages of all loaders.
const PACKAGES: [&str; 21] = [
    "busybox-static",
    "dosfstools",
    "file",
    "gdisk",
    "grub-common",
    "grub-efi-amd64-bin",
    "grub-pc-bin",
    "iproute2",
    "ipxe",
    "ipxe-qemu",
    "isolinux",
    "mtools",
    "openssl",
    "ovmf",
    "pxelinux",
    "sbsigntool",
    "shim-signed",
    "syslinux-common",
    "systemd-boot-efi",
    "xorriso",
    "binutils",
];

/// The packages of Debian 13, of which only files are used.
const NEWER: (&str, [&str; 1]) = ("trixie", ["grub-efi-amd64-unsigned"]);

/// The unpacked packages: of the host's suite, and newer ones.
pub(super) struct Tools(Packages, Packages);

impl Tools {
    /// Returns the packages, which the first caller fetches. The error says which one cannot be had.
    pub(super) fn get() -> Result<&'static Self, String> {
        static TOOLS: OnceLock<Result<Tools, String>> = OnceLock::new();
        let get = || {
            let dir = paths::target().join("loaders");
            let (suite, newer) = NEWER;
            let newer = Packages::of_suite(&dir.join(suite), suite, &newer)?;
            Packages::get(&dir, &PACKAGES).map(|packages| Tools(packages, newer))
        };
        let tools = TOOLS.get_or_init(|| get().map_err(|error| format!("no packages of loaders: {error:#}")));
        tools.as_ref().map_err(Clone::clone)
    }

    /// Returns a file or directory of a package.
    pub(super) fn path(&self, path: &str) -> Result<PathBuf> {
        self.0.path(path)
    }

    /// Returns a file of a newer package.
    pub(super) fn newer(&self, path: &str) -> Result<PathBuf> {
        self.1.path(path)
    }

    /// Returns the command of a program.
    pub(super) fn command(&self, program: &str) -> Result<Command> {
        self.0.command(program)
    }

    /// Copies a file of a package.
    pub(super) fn copy(&self, path: &str, to: &Path) -> Result<()> {
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(self.path(path)?, to).with_context(|| format!("cannot copy {path}"))?;
        Ok(())
    }
}
