//! Boot files of two builds, in two directories and with two homes of cargo: they are the same bytes.

use super::files::{FORMATS, LIMIT, contents};
use crate::job::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::{paths, tool};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) fn cases() -> Vec<Case> {
    let equal = |log: &Path| equal(log).map(|()| Outcome::Passed);
    vec![Case::new("boot::files-of-two-directories-are-equal", equal).full_if(true)]
}

/// A copy of the sources in a directory of another name and depth.
struct Copied {
    root: PathBuf,
    /// Cargo's home under another name.
    cargo: PathBuf,
}

impl Copied {
    /// Copies the repository and the files of the working tree that git does not ignore.
    fn new(dir: &Path, log: &Path) -> Result<Self> {
        let here = paths::root();
        let root = dir.join("a directory of another name").join("sources");
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            command.arg("-C").arg(&here).args(arguments);
            command
        };
        tool::run_ok(git(&["clone", "--quiet", "--shared", "."]).arg(&root), log, LIMIT)?;
        let list = tool::output(&mut git(&["ls-files", "-z", "--cached", "--others", "--exclude-standard"]))?;
        for name in String::from_utf8(list)?.split_terminator('\0') {
            let to = root.join(name);
            if !here.join(name).exists() {
                fs::remove_file(&to).with_context(|| format!("cannot remove {name}"))?;
                continue;
            }
            fs::create_dir_all(to.parent().context("a file without a directory")?)?;
            fs::copy(here.join(name), &to).with_context(|| format!("cannot copy {name}"))?;
        }
        // The loaders of CDs and networks are fetched once.
        fs::create_dir_all(root.join("target"))?;
        symlink(paths::target().join("image-tools"), root.join("target/image-tools"))?;
        let cargo = dir.join("another home of cargo");
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
        symlink(home.context("cargo has no home")?, &cargo)?;
        Ok(Self { root, cargo })
    }

    /// Returns this program, which works on the copy.
    fn xtask(&self) -> Command {
        let mut command = xtask();
        command.env("CARGO_MANIFEST_DIR", self.root.join("xtask")).env("CARGO_HOME", &self.cargo);
        command.env("CARGO_TARGET_DIR", self.root.join("target"));
        command
    }
}

/// Makes each format of the core image here and in the copy.
fn equal(log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let make = |mut command: Command, format: &str, side: &str| -> Result<BTreeMap<String, Vec<u8>>> {
        let out = dir.path().join(side).join(format);
        command.args(["image", "--apps", "wordcount", "--format", format, "--out"]).arg(&out);
        tool::run_ok(&mut command, log, LIMIT)?;
        contents(&out)
    };
    let here = FORMATS.map(|format| make(xtask(), format, "here"));
    let copied = Copied::new(dir.path(), log)?;
    for (format, here) in FORMATS.into_iter().zip(here) {
        let (here, there) = (here?, make(copied.xtask(), format, "there")?);
        ensure!(here.keys().eq(there.keys()), "format {format} has other files");
        for (name, bytes) in &here {
            let other = there.get(name).context("a file is missing")?;
            let same = bytes.iter().zip(other).take_while(|(a, b)| a == b).count();
            ensure!(bytes == other, "{name} differs between two directories, from byte {same} on");
        }
    }
    Ok(())
}
