//! Word count as a single Linux process, and as a pipeline of the usual tools.

use crate::Qemu;
use crate::debian::command::{bounded, output};
use crate::linux::{Guest, GuestConfig, Image};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The time limit of a build in seconds. A first build also compiles dependencies, possibly in parallel with
/// other builds.
const BUILD_WITHIN_S: u32 = 1800;

const RATE: &str = "/bench/rate";
const INPUT: &str = "/bench/input";
/// The reference implementation of the word count, with busybox's `tr`, `sed`, `sort` and `uniq`.
const PIPELINE: &str = r#"export LC_ALL=C
tr -cs A-Za-z '\n' </bench/input | tr A-Z a-z | sed '/^$/d' | sort | uniq -c |
    sed -E 's/^ *([0-9]+) (.*)$/\2\t\1/' | sort -t "$(printf '\t')" -k2,2nr -k1,1"#;

/// Builds the example `rate` of `apps/wordcount` as a static program, which runs in any guest, and returns
/// its path.
///
/// `target_dir` should be separate from that of other builds, because the flags differ.
pub fn build_rate(workspace: &Path, target_dir: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = bounded(cargo, BUILD_WITHIN_S);
    command.args(["build", "--release", "--package", "wordcount", "--example", "rate", "--target", TARGET]);
    // Cargo shows its progress on standard error.
    command.arg("--target-dir").arg(target_dir).current_dir(workspace).stderr(Stdio::inherit());
    // With --target, these flags apply to the program and not to build scripts, some of which cannot be
    // static.
    command.env("RUSTFLAGS", "-Ctarget-feature=+crt-static").env_remove("CARGO_ENCODED_RUSTFLAGS");
    output(&mut command).context("cannot build the word count for Linux")?;
    let program = target_dir.join(TARGET).join("release/examples/rate");
    ensure!(program.is_file(), "cargo has not built {}", program.display());
    Ok(program)
}

/// The speed at which a single Linux process counts words, from input in memory to merged, sorted output.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WordRate {
    /// The length of the input, in bytes.
    pub bytes: u64,
    /// The number of distinct words found.
    pub distinct: u64,
    /// The time of the fastest round, in seconds.
    pub best_s: f64,
    /// The time of the median round, in seconds.
    pub median_s: f64,
}

impl WordRate {
    /// Returns the input rate of the median round, in MB (10^6 bytes) per second.
    #[must_use]
    pub fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / self.median_s / 1e6
    }

    /// Parses `N bytes, N distinct words: best N s (N MB/s), median N s (N MB/s)`.
    fn parse(line: &str) -> Option<Self> {
        let (bytes, rest) = line.trim().split_once(" bytes, ")?;
        let (distinct, rest) = rest.split_once(" distinct words: best ")?;
        let (best, rest) = rest.split_once(" s ")?;
        let (_, rest) = rest.split_once("median ")?;
        let (median, _) = rest.split_once(" s ")?;
        // A time of 0 means that the input is too small for the printed precision.
        let seconds = |text: &str| text.parse().ok().filter(|&s: &f64| s.is_finite() && s > 0.0);
        Some(Self {
            bytes: bytes.parse().ok()?,
            distinct: distinct.parse().ok()?,
            best_s: seconds(best)?,
            median_s: seconds(median)?,
        })
    }
}

/// The result of the pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineRun {
    /// The time from start to end, measured by the host.
    pub elapsed: Duration,
    /// The lines `word<TAB>count`, in the format of the word count.
    pub output: Vec<u8>,
}

/// A Linux guest with one processor, the word count program and an input.
#[derive(Debug)]
pub struct WordCountGuest {
    guest: Guest,
}

impl WordCountGuest {
    /// Boots a guest with the program from [`build_rate`], and an input.
    pub fn boot(qemu: &Qemu, image: &Image, rate: &Path, input: &Path) -> Result<Self> {
        let bytes =
            std::fs::metadata(input).with_context(|| format!("cannot read {}", input.display()))?.len();
        // Memory for the input, twice while the guest starts, and for the words, which busybox's sort
        // allocates one by one.
        let memory_mib = 256 + 8 * u32::try_from(bytes.div_ceil(1 << 20))?;
        let config = GuestConfig {
            memory_mib,
            files: vec![(RATE.into(), rate.to_owned()), (INPUT.into(), input.to_owned())],
            ..GuestConfig::default()
        };
        Ok(Self { guest: Guest::boot(qemu, image, &config)? })
    }

    /// Counts in a single process, for a number of consecutive rounds.
    pub fn process(&mut self, rounds: u32, within: Duration) -> Result<WordRate> {
        let line = self.guest.check(&format!("{RATE} {INPUT} {rounds}"), within)?;
        WordRate::parse(&line).with_context(|| format!("the word count printed `{}`", line.trim()))
    }

    /// Counts with the pipeline of busybox's tools.
    pub fn pipeline(&mut self, within: Duration) -> Result<PipelineRun> {
        let begin = Instant::now();
        let output = self.guest.run(PIPELINE, within).context("the pipeline in a Linux guest")?;
        let elapsed = begin.elapsed();
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && complaint.is_empty(), "the pipeline failed: {}", complaint.trim());
        Ok(PipelineRun { elapsed, output: output.stdout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_what_the_program_prints() {
        let line = "10000000 bytes, 52345 distinct words: best 0.873 s (11 MB/s), median 0.952 s (11 MB/s)\n";
        let rate = WordRate::parse(line).unwrap();
        assert_eq!(rate, WordRate { bytes: 10_000_000, distinct: 52345, best_s: 0.873, median_s: 0.952 });
        assert!((rate.mb_per_s() - 10.504).abs() < 0.001);
        assert_eq!(WordRate::parse("1 bytes, 2 distinct words: best NaN s (), median 1 s ()"), None);
        assert_eq!(WordRate::parse("1 bytes, 2 distinct words: best 0.000 s (), median 0.000 s ()"), None);
        assert_eq!(WordRate::parse("Segmentation fault"), None);
    }
}
