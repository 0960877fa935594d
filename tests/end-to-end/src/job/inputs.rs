//! Inputs for word count, with the correct results, which coreutils compute.

use anyhow::{Context, Result};
use lab::{paths, text, tool};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Kinds of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// An empty file.
    Empty,
    /// The letter `A`.
    OneByte,
    /// Words of both cases, with digits and hyphens between them, and no newline at the end.
    NoFinalNewline,
    /// A million bytes of all values.
    Binary,
    /// One word of 50 MB.
    LongWord,
    /// The first megabyte of the default text.
    SmallText,
    /// The default text, several MB.
    Text,
    /// Copies of the default text, 100 MB in all.
    LargeText,
    /// Copies of the default text, 200 MB in all.
    HugeText,
}

impl Input {
    /// Returns the input's name in names of tests.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::OneByte => "one-byte",
            Self::NoFinalNewline => "no-final-newline",
            Self::Binary => "binary",
            Self::LongWord => "word-50MB",
            Self::SmallText => "text-1MB",
            Self::Text => "text",
            Self::LargeText => "text-100MB",
            Self::HugeText => "text-200MB",
        }
    }

    /// Writes the input to a file.
    pub(crate) fn write(self, path: &Path) -> Result<()> {
        let bytes = match self {
            Self::Empty => Vec::new(),
            Self::OneByte => b"A".to_vec(),
            Self::NoFinalNewline => b"The quick-brown fox; the FOX's 2nd\n\nbrownTHE end".to_vec(),
            Self::Binary => noise(1_000_000),
            Self::LongWord => b"abcdeFGHIJ".repeat(5_000_000),
            Self::SmallText => {
                let mut text = std::fs::read(text::default()?.path)?;
                text.truncate(1_000_000);
                text
            }
            Self::Text => std::fs::read(text::default()?.path)?,
            Self::LargeText | Self::HugeText => {
                let text = std::fs::read(text::default()?.path)?;
                let len = if self == Self::LargeText { 100_000_000 } else { 200_000_000 };
                text.iter().copied().cycle().take(len).collect()
            }
        };
        std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// An input and the correct result, as files.
pub(crate) struct Prepared {
    pub input: PathBuf,
    pub expected: PathBuf,
}

impl Input {
    /// Returns the input and the result of coreutils. The first test of a run that needs them creates them.
    pub(crate) fn prepared(self, log: &Path) -> Result<Prepared> {
        // Only one at a time: tests that run in parallel may need the same input.
        static PREPARING: Mutex<()> = Mutex::new(());
        let _preparing = PREPARING.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = paths::made(folder()?)?;
        let input = dir.join(self.name());
        let expected = input.with_extension("expected");
        if !expected.exists() {
            self.write(&input)?;
            let unfinished = input.with_extension("unfinished");
            count_with_coreutils(&input, &unfinished, log)?;
            std::fs::rename(unfinished, &expected)?;
        }
        Ok(Prepared { input, expected })
    }
}

/// Returns the directory of this run's inputs.
fn folder() -> Result<PathBuf> {
    Ok(paths::state()?.join("test-inputs"))
}

/// Removes the inputs, which may come from an older version.
pub(crate) fn clear() -> Result<()> {
    match std::fs::remove_dir_all(folder()?) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).context("cannot remove old test inputs"),
        _ => Ok(()),
    }
}

/// Returns deterministic bytes of all values (xorshift).
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .flatten()
    .take(len)
    .collect()
}

/// The reference pipeline of word count.
const PIPELINE: &str = r#"tr -cs A-Za-z '\n' <"$1" | tr A-Z a-z | sed '/^$/d' | sort | uniq -c |
 sed -E 's/^ *([0-9]+) (.*)$/\2\t\1/' | sort -t "$(printf '\t')" -k2,2nr -k1,1 >"$2""#;

/// Counts the words of `input` with coreutils and writes the result to `output`.
pub(crate) fn count_with_coreutils(input: &Path, output: &Path, log: &Path) -> Result<()> {
    let script = format!("set -eu; export LC_ALL=C; {PIPELINE}");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(input).arg(output);
    tool::run_ok(&mut command, log, Duration::from_secs(600)).map(|_| ())
}

/// Fails if two files differ. The first differing line is the error, and is written to the log.
pub(crate) fn compare(expected: &Path, got: &Path, log: &Path) -> Result<()> {
    let (want, have) = (std::fs::read(expected)?, std::fs::read(got).context("there is no output file")?);
    if want == have {
        return Ok(());
    }
    let lines =
        |bytes: &[u8]| bytes.split(|b| *b == b'\n').map(|l| l.escape_ascii().to_string()).collect::<Vec<_>>();
    let (want, have) = (lines(&want), lines(&have));
    let n = want.iter().zip(&have).take_while(|(a, b)| a == b).count();
    let line =
        |of: &[String]| of.get(n).map_or("nothing".to_owned(), |l| l.chars().take(60).collect::<String>());
    let what = format!("line {}: coreutils say `{}`, the job says `{}`", n + 1, line(&want), line(&have));
    writeln!(std::fs::File::options().append(true).open(log)?, "{what}")?;
    anyhow::bail!(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coreutils_count_as_specified() {
        let dir = tempfile::tempdir().unwrap();
        let [input, output, log] = ["in", "out", "log"].map(|n| dir.path().join(n));
        Input::NoFinalNewline.write(&input).unwrap();
        count_with_coreutils(&input, &output, &log).unwrap();
        let expected = "fox\t2\nthe\t2\nbrown\t1\nbrownthe\t1\nend\t1\nnd\t1\nquick\t1\ns\t1\n";
        assert_eq!(std::fs::read_to_string(&output).unwrap(), expected);
        Input::Empty.write(&input).unwrap();
        assert!(compare(&output, &input, &log).unwrap_err().to_string().contains("line 1"));
        count_with_coreutils(&input, &output, &log).unwrap();
        compare(&input, &output, &log).unwrap();
    }
}
