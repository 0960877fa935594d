//! The boot files of `cargo xtask image`.

use crate::job::misuse::one_error;
use crate::job::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::tool;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The longest silence, builds included.
const LIMIT: Duration = Duration::from_secs(900);

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("image::bad-options", |log| bad_options(log).map(|()| Outcome::Passed))]
}

/// Wrong options: one error, and no file.
fn bad_options(log: &Path) -> Result<()> {
    let configs = tempfile::tempdir()?;
    let config = configs.path().join("n0.conf");
    fs::write(&config, "# of a test\nnode=n0\nmanger=192.0.2.1:18500\n")?;
    let config = config.to_str().context("a directory whose path is no text")?;
    let cases: [(&[&str], &str); 13] = [
        (&["--format", "usb"], "usb"),
        (&["--format", "elf", "--cmdline", "node=a"], "are not for --format elf"),
        (&["--format", "elf", "--sign", "k", "c"], "are not for --format elf"),
        (&["--format", "efi", "--config", "/etc/hostname"], "line 1: "),
        (&["--format", "efi", "--config", "/nowhere/conf"], "cannot read /nowhere/conf"),
        (&["--format", "efi", "--config", config], "n0.conf: line 3: unknown key `manger`"),
        (&["--format", "efi", "--sign", "k"], "2 values required"),
        (&["--format", "efi", "--sign", "/nowhere/k", "c"], "--sign: cannot read /nowhere/k"),
        (&["--format", "efi", "--sign", config, config], "n0.conf has no private key in PEM"),
        (&["--format", "efi", "--cmdline", "node"], "is not key=value"),
        (&["--format", "efi", "--cmdline", "nodee=a"], "--cmdline: unknown key `nodee`"),
        (&["--format", "efi", "--key", "/etc/hostname"], "not a cluster key"),
        (&["--format", "efi", "--apps", "wordcloud"], "unknown application `wordcloud`"),
    ];
    for (options, says) in cases {
        let dir = tempfile::tempdir()?;
        let out = dir.path().join("out");
        let done = tool::run(xtask().arg("image").args(options).arg("--out").arg(out), log, LIMIT)?;
        ensure!(!done.status.success(), "{options:?} succeeded");
        one_error(&done.output, says)?;
        ensure!(fs::read_dir(dir.path())?.next().is_none(), "{options:?} left a file");
    }
    // No directory for the file can be below a file.
    for out in [config.to_owned(), format!("{config}/out")] {
        let done = tool::run(xtask().args(["image", "--format", "efi", "--out", &out]), log, LIMIT)?;
        ensure!(!done.status.success(), "--out {out} succeeded");
        one_error(&done.output, &format!("cannot write to {out}"))?;
    }
    Ok(())
}
