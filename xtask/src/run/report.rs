//! The result of a run, for people and for programs.

use super::Options;
use crate::ui;
use anyhow::{Context, Result};
use qemu::fabric::FabricCounters;
use qemu::vm::Accel;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Lines of the result that are shown.
const SHOWN: usize = 10;

/// The figures of a run: what the manager measured, and what the launcher knows.
pub struct Report {
    figures: Map<String, Value>,
}

impl Report {
    /// Reads what the manager wrote and adds to it.
    pub fn read(path: &Path, options: &Options, accel: Accel, fabric: &FabricCounters) -> Result<Self> {
        let text = std::fs::read(path).context("the manager wrote no figures")?;
        let mut figures: Map<String, Value> =
            serde_json::from_slice(&text).context("the manager's figures")?;
        figures.insert("nic".into(), json!(options.nic));
        figures.insert("machine".into(), json!(options.machine.to_string()));
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

    /// All of it, as one JSON object.
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(&self.figures).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Prints the first lines of the result, what each node did, and the times.
    pub fn print(&self, result: &Path) -> Result<()> {
        let result = BufReader::new(File::open(result).context("the manager wrote no result")?);
        println!();
        for line in result.split(b'\n').take(SHOWN) {
            let line = line.context("cannot read the result")?;
            let line = String::from_utf8_lossy(&line);
            match line.split_once('\t') {
                Some((word, count)) => println!("  {word:<20} {count:>12}"),
                None => println!("  {line}"),
            }
        }
        println!();
        self.print_nodes();
        println!("{}", self.summary());
        Ok(())
    }

    fn print_nodes(&self) {
        let empty = Vec::new();
        let boots = self.figures.get("boot_ms").and_then(Value::as_array).unwrap_or(&empty);
        let nodes = self.figures.get("per_node").and_then(Value::as_array).unwrap_or(&empty);
        for (n, node) in nodes.iter().enumerate() {
            let name =
                node.get("name").and_then(Value::as_str).map_or_else(|| format!("node{n}"), str::to_owned);
            let mapped = node.get("mapped_bytes").and_then(Value::as_u64).unwrap_or(0);
            let reduced = node.get("reduced_keys").and_then(Value::as_u64).unwrap_or(0);
            let boot = boots.get(n).and_then(Value::as_f64).unwrap_or(f64::NAN);
            let mapped = ui::bytes(mapped);
            println!("  {name:<8} mapped {mapped:>10}, reduced {reduced:>8} keys, up in {boot:.0} ms");
        }
    }

    fn summary(&self) -> String {
        let number = |name: &str| self.figures.get(name).and_then(Value::as_f64).unwrap_or(0.0);
        let (words, distinct) = (number("words"), number("distinct"));
        let input = ui::bytes(self.figures.get("input_bytes").and_then(Value::as_u64).unwrap_or(0));
        let (elapsed, stream, run) = (number("elapsed_s"), number("stream_s"), number("run_s"));
        format!(
            "{input}, {words:.0} words, {distinct:.0} distinct: {elapsed:.2} s \
             ({stream:.2} s until all input was sent, {run:.2} s after that)"
        )
    }
}
