//! The result of a run, for people and for programs.

use super::Options;
use anyhow::{Context, Result};
use fabric::FabricCounters;
use lab::ui;
use qemu::vm::Accel;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The manager's list of members.
#[derive(Deserialize)]
struct Members {
    nodes: Vec<MemberFigures>,
}

#[derive(Deserialize)]
struct MemberFigures {
    node: u64,
    /// Milliseconds from the kernel's first instruction until it asked to join, which is the last stage that
    /// the request can contain. The manager's answer takes some milliseconds more, which the console's boot
    /// chart shows.
    boot_ms: Option<f64>,
}

impl Members {
    /// Returns the boot time of the node of a report, in milliseconds.
    fn boot_ms(&self, report: &Value) -> Option<f64> {
        let node = report.get("node")?.as_u64()?;
        self.nodes.iter().find(|member| member.node == node)?.boot_ms
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).context("the manager wrote no figures")?;
    serde_json::from_slice(&text).context("the manager's figures are not as expected")
}

/// Reads the manager's figures of a job.
pub(super) fn job_figures(path: &Path) -> Result<Value> {
    read(path)
}

/// The greatest number of lines of the result that are printed, and of characters of each.
const SHOWN: usize = 10;
const SHOWN_WIDTH: usize = 100;

/// The figures of a run: the manager's, and those that the launcher adds.
pub(super) struct Report {
    figures: Map<String, Value>,
}

impl Report {
    /// Reads the manager's figures of the last job and of the members, and adds the launcher's and those of
    /// earlier jobs.
    pub(super) fn read(
        figures: &Path,
        earlier: Vec<Value>,
        members: &Path,
        options: &Options,
        accel: Option<Accel>,
        fabric: &FabricCounters,
    ) -> Result<Self> {
        let members: Members = read(members)?;
        let mut figures: Map<String, Value> = read(figures)?;
        let reports = figures.get("reports").and_then(Value::as_array).into_iter().flatten();
        let boot_ms: Vec<_> = reports.map(|report| members.boot_ms(report)).collect();
        figures.insert("boot_ms".into(), json!(boot_ms));
        if !earlier.is_empty() {
            figures.insert("earlier".into(), Value::Array(earlier));
        }
        figures.insert("nic".into(), json!(options.nics()));
        let machine = if options.linux { "linux".to_owned() } else { options.machine.to_string() };
        figures.insert("machine".into(), json!(machine));
        figures.insert("accel".into(), json!(accel));
        figures.insert("cpus".into(), json!(options.cpus));
        figures.insert("seed".into(), json!(options.seed));
        figures.insert(
            "fabric".into(),
            json!({
                "faults": options.fabric.to_string(),
                "frames": fabric.ports.iter().map(|p| p.frames_in).sum::<u64>(),
                "bytes": fabric.ports.iter().map(|p| p.bytes_in).sum::<u64>(),
                "lost": fabric.faults.lost,
                "duplicated": fabric.faults.duplicated,
                "reordered": fabric.faults.reordered,
                "corrupted": fabric.faults.corrupted,
                "dropped_full": fabric.ports.iter().map(|p| p.dropped_full).sum::<u64>(),
            }),
        );
        Ok(Self { figures })
    }

    /// Returns all figures as one JSON object.
    pub(super) fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(&self.figures).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Prints the first lines of the result, a summary of each node, and the times.
    pub(super) fn print(&self, result: &Path) -> Result<()> {
        let result = BufReader::new(File::open(result).context("the manager wrote no result")?);
        println!();
        for line in result.split(b'\n').take(SHOWN) {
            let line = line.context("cannot read the result")?;
            let line = String::from_utf8_lossy(&line);
            match line.split_once('\t') {
                Some((word, count)) => println!("  {word:<20} {count:>12}"),
                None => println!("  {}", shortened(&line)),
            }
        }
        println!();
        self.print_nodes();
        println!("{}", self.summary());
        Ok(())
    }

    fn print_nodes(&self) {
        let list = |name: &str| self.figures.get(name).and_then(Value::as_array).into_iter().flatten();
        let mut lines: Vec<_> = list("reports")
            .zip(list("boot_ms"))
            .map(|(report, boot)| {
                let name = report.get("name").and_then(Value::as_str).unwrap_or("?");
                let count = |name: &str| {
                    report.pointer(&format!("/counts/{name}")).and_then(Value::as_u64).unwrap_or(0)
                };
                let has = |name: &str| report.pointer(&format!("/counts/{name}")).is_some();
                let work = if has("mapped_bytes") {
                    let mapped = ui::bytes(count("mapped_bytes"));
                    format!("mapped {mapped:>10}, reduced {:>8} keys", count("reduced_keys"))
                } else {
                    counts_of(report)
                };
                let up = boot.as_f64().map(|boot| format!("up in {boot:.0} ms"));
                let words: Vec<_> = [work].into_iter().chain(up).filter(|word| !word.is_empty()).collect();
                let line = format!("  {name:<8} {}", words.join(", "));
                // Sorts node2 before node10.
                ((name.len(), name), line)
            })
            .collect();
        lines.sort();
        for (_, line) in lines {
            println!("{line}");
        }
    }

    /// Returns the bytes of input of the last job: of its files, and of the dataset that the job before has
    /// kept.
    fn input_bytes(&self) -> u64 {
        let count = |figures: &Value, name: &str| figures.get(name).and_then(Value::as_u64).unwrap_or(0);
        let before = self.figures.get("earlier").and_then(Value::as_array).and_then(|jobs| jobs.last());
        let files = self.figures.get("input_bytes").and_then(Value::as_u64).unwrap_or(0);
        files + before.map_or(0, |job| count(job, "kept_bytes"))
    }

    fn summary(&self) -> String {
        let number = |name: &str| self.figures.get(name).and_then(Value::as_f64).unwrap_or(0.0);
        let counts = self.figures.get("reports").and_then(|r| r.get(0)?.get("counts")?.as_object());
        let counted: String = counts
            .into_iter()
            .flat_map(Map::keys)
            .filter(|name| !matches!(name.as_str(), "mapped_bytes" | "reduced_keys"))
            .map(|name| format!(", {:.0} {name}", number(name)))
            .collect();
        let input = ui::bytes(self.input_bytes());
        let (elapsed, stream, run) = (number("elapsed_s"), number("stream_s"), number("run_s"));
        format!(
            "{input}{counted}: {elapsed:.2} s \
             ({stream:.2} s until all input was sent, {run:.2} s after that)"
        )
    }
}

/// Returns the counts of a node's report, as in `10 vertices, 25 edges`.
fn counts_of(report: &Value) -> String {
    let counts = report.get("counts").and_then(Value::as_object).into_iter().flatten();
    let words = counts.map(|(name, count)| format!("{:>10} {name}", count.as_u64().unwrap_or(0)));
    words.collect::<Vec<_>>().join(", ")
}

/// Shortens a line to the width of a terminal.
fn shortened(line: &str) -> String {
    let mut short: String = line.chars().take(SHOWN_WIDTH).collect();
    if short.len() < line.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(figures: &Value) -> String {
        Report { figures: figures.as_object().cloned().unwrap_or_default() }.summary()
    }

    #[test]
    fn a_dataset_is_input_too() {
        let files = json!({ "input_bytes": 2000, "elapsed_s": 1.0 });
        assert!(summary(&files).starts_with("2000 B: 1.00 s"), "{}", summary(&files));
        let earlier = [json!({ "input_bytes": 7000, "kept_bytes": 3000 })];
        let dataset = json!({ "input_bytes": 0, "elapsed_s": 1.0, "earlier": earlier });
        assert!(summary(&dataset).starts_with("3000 B: 1.00 s"), "{}", summary(&dataset));
        let repeated = json!({ "input_bytes": 5000, "earlier": [json!({ "input_bytes": 5000 })] });
        assert!(summary(&repeated).starts_with("5000 B"), "{}", summary(&repeated));
    }
}
