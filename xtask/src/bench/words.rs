//! Measures word count on one node, compared with the same code as a single process on Linux.

use super::gaps::Gaps;
use super::lab::{Lab, Linux};
use super::stats::median_of;
use super::table::{Table, maybe};
use super::target::{Bound, Target};
use anyhow::{Context, Result, ensure};
use lab::{interrupt, text, ui};
use qemu::linux::baseline::WordCountGuest;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Phases of the job from the input in memory to the merged result, as named in its report.
const PHASES: [&str; 4] = ["map", "shuffle", "reduce", "merge"];
/// Phoenix++ 1.0 in a Linux machine with one processor under TCG, in MB/s. Quoted from earlier measurements
/// on another text of 10 to 50 MB on a machine of this class; not measured here.
const PHOENIX_MB_S: (f64, f64) = (10.0, 13.0);
/// The greatest accepted time of a node, relative to the same code as a Linux process.
const TARGET_RATIO: f64 = 1.10;
/// Rounds in one machine, of which the median counts, on both sides: in the first round QEMU translates the
/// code, and memory is touched for the first time.
const ROUNDS: u32 = 3;
/// The time limit of the measured rounds.
const LIMIT: Duration = Duration::from_secs(300);

/// The medians of the word count on an appliance and on Linux.
#[derive(Debug, Serialize)]
pub(super) struct Words {
    input_bytes: u64,
    distinct: u64,
    /// Seconds of each phase on the appliance.
    phases_s: Vec<(&'static str, Option<f64>)>,
    /// The time of all phases, in seconds.
    node_s: Option<f64>,
    /// The length of the input divided by the duration, in MB (10^6 bytes) per second.
    node_mb_s: Option<f64>,
    /// The time until all input was on the node: cut, encrypted and sent by the manager.
    stream_s: Option<f64>,
    stream_mb_s: Option<f64>,
    /// The whole job, as the client sees it.
    elapsed_s: Option<f64>,
    /// A single process on Linux; absent if it was not measured.
    linux_s: Option<f64>,
    linux_mb_s: Option<f64>,
    /// The node's time relative to the process's.
    time_ratio: Option<f64>,
    /// The lowest and the highest throughput that is published for Phoenix, in MB/s. It is quoted, not
    /// measured.
    phoenix_quoted_mb_s: (f64, f64),
}

/// The figures of one job on the appliance.
pub(super) struct Run {
    input_bytes: u64,
    distinct: u64,
    phases_s: [f64; PHASES.len()],
    stream_s: f64,
    /// From the first input on the node to the last, in seconds; older kernels do not report it.
    pub input_s: Option<f64>,
    /// The whole job as its client sees it, in seconds.
    pub elapsed_s: f64,
}

impl Run {
    /// Parses the figures of `cargo xtask run --json` with one node.
    pub(super) fn read(figures: &Value) -> Option<Self> {
        let whole = |name: &str| figures.get(name)?.as_u64();
        let seconds = |name: &str| figures.get(name)?.as_f64();
        let times = figures.pointer("/reports/0/times_us")?;
        let mut phases_s = [0.0; PHASES.len()];
        for (phase, slot) in PHASES.into_iter().zip(&mut phases_s) {
            *slot = times.get(phase)?.as_f64()? / 1e6;
        }
        Some(Self {
            input_bytes: whole("input_bytes")?,
            distinct: whole("distinct")?,
            phases_s,
            stream_s: seconds("stream_s")?,
            input_s: times.get("input").and_then(Value::as_f64).map(|us| us / 1e6),
            elapsed_s: seconds("elapsed_s")?,
        })
    }

    /// Parses the figures of `cargo xtask run --json --repeat N` with one node, and returns those of the job
    /// with the median time on the node.
    fn median(figures: &Value) -> Option<Self> {
        let earlier = figures.get("earlier").and_then(Value::as_array).into_iter().flatten();
        let mut runs = earlier.chain([figures]).map(Self::read).collect::<Option<Vec<_>>>()?;
        runs.sort_by(|a, b| a.node_s().total_cmp(&b.node_s()));
        let middle = runs.len() / 2;
        Some(runs.swap_remove(middle))
    }

    fn node_s(&self) -> f64 {
        self.phases_s.iter().sum()
    }
}

/// Counts a text of at least `bytes` on both sides, in turn, each time in a machine that is booted for it.
pub(super) fn measure(
    lab: &Lab,
    linux: Option<&Linux>,
    runs: u32,
    bytes: u64,
    gaps: &mut Gaps,
) -> Result<Words> {
    let input = long_text(lab, bytes)?;
    let mut node: Vec<Run> = Vec::new();
    let mut process = Vec::new();
    for run in 1..=runs {
        interrupt::check()?;
        ui::step(&format!("word count on a node: {run} of {runs}"), || {
            let rounds = ROUNDS.to_string();
            let job = lab
                .job(&["--machine", "q35", "--nodes", "1", "--cpus", "1", "--repeat", &rounds], &input)
                .context("word count")?;
            node.push(Run::median(&job.figures).context("the figures of a word count lack something")?);
            Ok(())
        })?;
        let Some(linux) = linux else { continue };
        let step = format!("word count on Linux: {run} of {runs}");
        process.extend(gaps.attempt(&step, || {
            let mut guest = WordCountGuest::boot(&lab.qemu, &linux.image, &linux.rate, &input)?;
            guest.process(ROUNDS, LIMIT)
        })?);
    }
    let first = node.first().context("nothing was measured")?;
    let (input_bytes, distinct) = (first.input_bytes, first.distinct);
    for rate in &process {
        ensure!(
            (rate.bytes, rate.distinct) == (input_bytes, distinct),
            "Linux found {} words in {} bytes, the node {distinct} in {input_bytes}",
            rate.distinct,
            rate.bytes
        );
    }
    let seconds: Vec<f64> = process.iter().map(|rate| rate.median_s).collect();
    Ok(summary(input_bytes, distinct, &node, &seconds))
}

fn summary(input_bytes: u64, distinct: u64, node: &[Run], linux: &[f64]) -> Words {
    let rate = |seconds: Option<f64>| seconds.map(|s| input_bytes as f64 / s / 1e6);
    let node_s = median_of(node, |run| Some(run.node_s()));
    let stream_s = median_of(node, |run| Some(run.stream_s));
    let linux_s = median_of(linux, |s| Some(*s));
    let phases = PHASES.into_iter().enumerate();
    Words {
        input_bytes,
        distinct,
        phases_s: phases
            .map(|(n, name)| (name, median_of(node, |run| run.phases_s.get(n).copied())))
            .collect(),
        node_s,
        node_mb_s: rate(node_s),
        stream_s,
        stream_mb_s: rate(stream_s),
        elapsed_s: median_of(node, |run| Some(run.elapsed_s)),
        linux_s,
        linux_mb_s: rate(linux_s),
        time_ratio: node_s.zip(linux_s).map(|(node, linux)| node / linux),
        phoenix_quoted_mb_s: PHOENIX_MB_S,
    }
}

impl Words {
    /// Returns the table of both sides and of the quoted figures.
    pub(super) fn table(&self) -> Table {
        let phases: Vec<_> =
            self.phases_s.iter().map(|(name, s)| format!("{name} {} s", maybe(*s))).collect();
        let mut table = Table::new(
            "Word count on one node",
            format!(
                "{}, {} distinct words, q35, 1 processor, in turn; the node's phases: {}; the ratio is of time, to the \
                 Linux process; Phoenix is quoted from earlier measurements with another text, not measured",
                ui::bytes(self.input_bytes),
                self.distinct,
                phases.join(", ")
            ),
            &["from input in memory to merged result", "s", "MB/s", "ratio"],
        );
        let none = || "-".to_owned();
        table.row([
            "Ferrolite node".into(),
            maybe(self.node_s),
            maybe(self.node_mb_s),
            maybe(self.time_ratio),
        ]);
        table.row([
            "single Linux process, same code".into(),
            maybe(self.linux_s),
            maybe(self.linux_mb_s),
            self.linux_s.map_or_else(none, |_| maybe(Some(1.0))),
        ]);
        let (low, high) = self.phoenix_quoted_mb_s;
        table.row(["Phoenix++ on Linux (quoted)".into(), none(), format!("{low} to {high}"), none()]);
        table.row([
            "apart: streaming the input to the node".into(),
            maybe(self.stream_s),
            maybe(self.stream_mb_s),
            none(),
        ]);
        table.row(["apart: the whole job, streaming included".into(), maybe(self.elapsed_s), none(), none()]);
        table
    }

    /// Returns the targets: at least as fast as Phoenix at its fastest and, if that was measured, hardly
    /// slower than the same code as a process.
    pub(super) fn targets(&self) -> Vec<Target> {
        let mut targets = vec![Target::new(
            "word count on one node",
            self.node_mb_s,
            "MB/s",
            Bound::AtLeast(PHOENIX_MB_S.1),
        )];
        if self.time_ratio.is_some() {
            let bound = Bound::AtMost(TARGET_RATIO);
            targets.push(Target::new("its time, share of the process's", self.time_ratio, "", bound));
        }
        targets
    }
}

/// Returns the default text, repeated until it is long enough.
pub(super) fn long_text(lab: &Lab, bytes: u64) -> Result<PathBuf> {
    let path = lab.dir().join("text");
    std::fs::write(&path, repeated(&text::default()?.path, bytes)?)?;
    Ok(path)
}

fn repeated(path: &Path, bytes: u64) -> Result<Vec<u8>> {
    let text = std::fs::read(path)?;
    ensure!(!text.is_empty(), "{} is empty", path.display());
    Ok(text.repeat(usize::try_from(bytes)?.div_ceil(text.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn phases_are_added_and_compared() {
        let figures = |map: u64| {
            json!({
                "input_bytes": 10_000_000, "distinct": 7, "stream_s": 0.5, "elapsed_s": 2.0,
                "reports": [{ "times_us": { "map": map, "shuffle": 1, "reduce": 100_000, "merge": 99_999 } }],
            })
        };
        let runs: Vec<Run> = [500_000, 300_000, 900_000].map(|map| Run::read(&figures(map)).unwrap()).into();
        let words = summary(10_000_000, 7, &runs, &[1.4, 1.0, 2.0]);
        assert!((words.node_s.unwrap() - 0.7).abs() < 1e-9);
        assert!((words.time_ratio.unwrap() - 0.5).abs() < 1e-9);
        assert!(words.targets().iter().all(|target| target.met));
        assert!(!summary(10_000_000, 7, &runs, &[0.6]).targets()[1].met);
        let alone = summary(10_000_000, 7, &runs, &[]);
        assert_eq!((alone.linux_s, alone.time_ratio), (None, None));
        let mut lacking = figures(1);
        lacking["reports"][0]["times_us"] = json!({ "map": 1 });
        assert!(Run::read(&lacking).is_none());
    }

    #[test]
    fn a_text_is_repeated_until_it_is_long_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        std::fs::write(&path, "abc ").unwrap();
        assert_eq!(repeated(&path, 9).unwrap(), b"abc abc abc ");
        std::fs::write(&path, "").unwrap();
        assert!(repeated(&path, 9).is_err());
    }
}
