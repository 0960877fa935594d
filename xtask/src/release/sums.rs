//! Checksums of a directory, in the format of `sha256sum`.

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The name of the file with the sums, in the directory.
pub(crate) const FILE: &str = "SHA256SUMS";

/// Returns one line for each file below a directory: the digest and the path, sorted by path.
pub(crate) fn of_directory(dir: &Path) -> Result<String> {
    let mut files = Vec::new();
    collect(dir, &mut files)?;
    files.sort();
    let mut sums = String::new();
    for file in files {
        let bytes = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        for byte in Sha256::digest(&bytes) {
            write!(sums, "{byte:02x}")?;
        }
        writeln!(sums, "  {}", file.strip_prefix(dir).unwrap_or(&file).display())?;
    }
    Ok(sums)
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn sha256sum_agrees_and_sees_a_change() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("lib")).unwrap();
        std::fs::write(dir.path().join("lib/a"), "one").unwrap();
        std::fs::write(dir.path().join("b"), "").unwrap();
        let sums = of_directory(dir.path()).unwrap();
        assert_eq!(sums.lines().map(|line| &line[64..]).collect::<Vec<_>>(), ["  b", "  lib/a"]);
        std::fs::write(dir.path().join(FILE), sums).unwrap();
        let check = || {
            let mut sha256sum = Command::new("sha256sum");
            sha256sum.args(["--check", "--status", FILE]).current_dir(dir.path()).status().unwrap().success()
        };
        assert!(check());
        std::fs::write(dir.path().join("lib/a"), "two").unwrap();
        assert!(!check());
    }
}
