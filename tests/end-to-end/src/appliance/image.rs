//! The boot files of `cargo xtask image`.

use crate::job::inputs::Input;
use crate::job::misuse::one_error;
use crate::job::{word_count, xtask};
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::cargo::Profile;
use lab::{manager, tool};
use std::path::Path;
use std::time::Duration;

/// The longest silence, builds included.
const LIMIT: Duration = Duration::from_secs(900);

pub(crate) fn cases() -> Vec<Case> {
    let on = |machine: &'static str| {
        Case::new(format!("image::linux-16-bit-{machine}"), move |log| {
            counts_words(machine, log).map(|()| Outcome::Passed)
        })
    };
    vec![
        on("q35"),
        on("microvm"),
        Case::new("image::bad-options", |log| bad_options(log).map(|()| Outcome::Passed)),
    ]
}

/// Boots appliances from the universal file by its real-mode entry, as QEMU starts Linux kernels by a BIOS.
/// They join a manager, and count words as coreutils do.
fn counts_words(machine: &str, log: &Path) -> Result<()> {
    let dir = tempfile::TempDir::with_prefix("ferrolite-")?;
    tool::run_ok(xtask().args(["image", "--format", "efi", "--out"]).arg(dir.path()), log, LIMIT)?;
    std::fs::rename(dir.path().join("ferrolite.efi"), dir.path().join("ferrolite"))?;
    let manager = manager::build(Profile::Dev)?;
    std::os::unix::fs::symlink(manager, dir.path().join("ferrolite-manager"))?;
    let programs = dir.path().to_str().context("a directory whose name is no text")?;
    let options = ["--machine", machine, "--programs", programs];
    word_count::word_count(Input::Text, 2, false, "softroce", &options, log)
}

/// Wrong options: one error, and no file.
fn bad_options(log: &Path) -> Result<()> {
    let cases: [(&[&str], &str); 4] = [
        (&["--format", "usb"], "usb"),
        (&["--format", "elf", "--cmdline", "node=a"], "need --format efi"),
        (&["--format", "efi", "--cmdline", "node"], "is not key=value"),
        (&["--format", "efi", "--key", "/etc/hostname"], "not a cluster key"),
    ];
    for (options, says) in cases {
        let dir = tempfile::tempdir()?;
        let done = tool::run(xtask().arg("image").args(options).arg("--out").arg(dir.path()), log, LIMIT)?;
        ensure!(!done.status.success(), "{options:?} succeeded");
        one_error(&done.output, says)?;
        ensure!(std::fs::read_dir(dir.path())?.next().is_none(), "{options:?} left a file");
    }
    Ok(())
}
