//! The boot files of `cargo xtask image`.

use crate::job::misuse::one_error;
use crate::job::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Result, ensure};
use lab::tool;
use std::path::Path;
use std::time::Duration;

/// The longest silence, builds included.
const LIMIT: Duration = Duration::from_secs(900);

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("image::bad-options", |log| bad_options(log).map(|()| Outcome::Passed))]
}

/// Wrong options: one error, and no file.
fn bad_options(log: &Path) -> Result<()> {
    let cases: [(&[&str], &str); 8] = [
        (&["--format", "usb"], "usb"),
        (&["--format", "elf", "--cmdline", "node=a"], "are not for --format elf"),
        (&["--format", "elf", "--sign", "k", "c"], "are not for --format elf"),
        (&["--format", "efi", "--config", "/etc/hostname"], "line 1: "),
        (&["--format", "efi", "--sign", "k"], "2 values required"),
        (&["--format", "efi", "--sign", "/nowhere/k", "c"], "--sign: cannot read /nowhere/k"),
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
