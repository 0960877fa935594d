//! A real text of several MB, for runs without `--input`.
//!
//! The text is the King James Bible from Debian's packages, which need not be installed. If they are not
//! available, it is made of texts that are on every machine (manuals in Perl's modules, licences, Rust's own
//! documentation).

use crate::{apt, paths, tool, ui};
use anyhow::{Result, bail};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A text and its source.
pub struct Text {
    /// The file.
    pub path: PathBuf,
    /// The source, for the user.
    pub about: &'static str,
}

/// The least length of a text, in bytes.
const LEAST: u64 = 2_000_000;
/// The most bytes that are used of the machine's own texts.
const ENOUGH: usize = 6_000_000;

/// Returns true if an application needs an input that the user has not given: all do, but for those that
/// generate their own, and a log, which begins empty.
#[must_use]
pub fn is_wanted(app: &str, args: &[String]) -> bool {
    app != "log" && !args.iter().any(|arg| arg.starts_with("generate="))
}

/// Returns the default text, which is created once and then kept.
pub fn default() -> Result<Text> {
    let dir = paths::made(paths::state()?.join("text"))?;
    let bible = Text { path: dir.join("kjv.txt"), about: "King James Bible, Debian package bible-kjv-text" };
    let system = Text { path: dir.join("system.txt"), about: "texts found on this machine" };
    for text in [&bible, &system] {
        if std::fs::metadata(&text.path).is_ok_and(|m| m.len() >= LEAST) {
            return Ok(Text { path: text.path.clone(), ..*text });
        }
    }
    match ui::step("fetching a text to count", || keep(&bible.path, &kjv(&dir)?)) {
        Ok(()) => Ok(bible),
        Err(e) => {
            eprintln!(
                "  the packages with a text are not available ({}); using texts of this machine",
                ui::one_line(&e)
            );
            keep(&system.path, &gather(&places()))?;
            Ok(system)
        }
    }
}

/// Returns the whole Bible, one verse a line.
fn kjv(dir: &Path) -> Result<Vec<u8>> {
    let unpacked = dir.join("packages");
    apt::unpack(&["bible-kjv", "bible-kjv-text"], &unpacked)?;
    // The program looks for its data in the current directory first.
    let mut bible = Command::new(unpacked.join("usr/bin/bible"));
    let text = tool::output(bible.args(["-f", "gen1:1-rev22:21"]).current_dir(unpacked.join("usr/lib")))?;
    std::fs::remove_dir_all(unpacked)?;
    Ok(text)
}

/// Writes a text that is long enough, atomically.
fn keep(path: &Path, text: &[u8]) -> Result<()> {
    if (text.len() as u64) < LEAST {
        bail!("the text has only {} bytes", text.len());
    }
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
    file.write_all(text)?;
    file.persist(path)?;
    Ok(())
}

/// Returns directories with prose on a machine with Rust and Debian's base system.
fn places() -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> =
        ["/usr/share/common-licenses", "/usr/share/doc", "/usr/share/perl"].map(PathBuf::from).into();
    if let Ok(sysroot) = tool::output(Command::new("rustc").args(["--print", "sysroot"])) {
        places.insert(0, PathBuf::from(String::from_utf8_lossy(&sysroot).trim()).join("share/doc"));
    }
    places
}

/// Returns the readable text files below some directories, in order of their names, until they are long
/// enough.
fn gather(places: &[PathBuf]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut todo: Vec<PathBuf> = places.iter().rev().cloned().collect();
    while let Some(path) = todo.pop() {
        if text.len() >= ENOUGH {
            break;
        }
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        if meta.is_dir() {
            let Ok(entries) = std::fs::read_dir(&path) else { continue };
            let mut entries: Vec<_> = entries.flatten().map(|e| e.path()).collect();
            entries.sort_unstable_by(|a, b| b.cmp(a));
            todo.extend(entries);
        } else if meta.is_file() && meta.len() < 1_000_000 {
            let Ok(bytes) = std::fs::read(&path) else { continue };
            if std::str::from_utf8(&bytes).is_ok_and(|s| !s.contains('\0')) {
                text.extend(bytes);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathers_text_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("b")).unwrap();
        std::fs::write(dir.path().join("b/one"), "one ").unwrap();
        std::fs::write(dir.path().join("a"), "two ").unwrap();
        std::fs::write(dir.path().join("binary"), [0xff, 0, 1]).unwrap();
        assert_eq!(gather(&[dir.path().to_owned()]), b"two one ");
        assert!(keep(&dir.path().join("kept"), b"short").is_err());
        assert!(!dir.path().join("kept").exists());
    }
}
