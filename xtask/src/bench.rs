//! Figures: what the documentation quotes, a command prints.

use crate::{paths, tool, ui};
use anyhow::{Context, Result};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// What to measure and where the figures go.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// How often each measurement is repeated; medians are printed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    runs: u32,
    /// Where the figures go, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One measured quantity.
struct Figure {
    name: String,
    unit: &'static str,
    median: f64,
}

/// Longest that one run may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Measures everything.
pub fn bench(options: &Options) -> Result<()> {
    let mut figures = Vec::new();
    for nodes in [1, 4] {
        figures.extend(word_count(nodes, options.runs)?);
    }
    for figure in &figures {
        println!("{:<44} {:>12.2} {}", figure.name, figure.median, figure.unit);
    }
    if let Some(path) = &options.json {
        let object: Map<String, Value> =
            figures.iter().map(|f| (f.name.clone(), json!({ "median": f.median, "unit": f.unit }))).collect();
        std::fs::write(path, serde_json::to_vec_pretty(&object)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Boot and word count of the default text, each run in a cluster of its own.
fn word_count(nodes: u32, runs: u32) -> Result<Vec<Figure>> {
    let mut reports = Vec::new();
    ui::step(&format!("word count on {nodes} nodes, {runs} times"), || {
        for _ in 0..runs {
            reports.push(one_run(nodes)?);
        }
        Ok(())
    })?;
    let number = |report: &Value, name: &str| report.get(name).and_then(Value::as_f64);
    let over = |name: &str| reports.iter().filter_map(|r| number(r, name)).collect::<Vec<_>>();
    let boots =
        reports.iter().filter_map(|r| r.get("boot_ms")?.as_array()).flatten().filter_map(Value::as_f64);
    let rates = reports.iter().filter_map(|r| Some(number(r, "input_bytes")? / number(r, "run_s")? / 1e6));
    let figure = |what: &str, unit, values: Vec<f64>| {
        median(values).map(|median| Figure { name: format!("{what}, {nodes} nodes"), unit, median })
    };
    Ok([
        figure("boot: entry to joined", "ms", boots.collect()),
        figure("word count: whole job", "s", over("elapsed_s")),
        figure("word count: until all input was sent", "s", over("stream_s")),
        figure("word count: after that", "s", over("run_s")),
        figure("word count: input over time after that", "MB/s", rates.collect()),
    ]
    .into_iter()
    .flatten()
    .collect())
}

fn one_run(nodes: u32) -> Result<Value> {
    let dir = tempfile::tempdir()?;
    let json = dir.path().join("run.json");
    let mut command = Command::new("/proc/self/exe");
    command.args(["run", "--nodes", &nodes.to_string(), "--json"]).arg(&json);
    tool::run_ok(&mut command, &paths::state()?.join("bench.log"), LIMIT)?;
    Ok(serde_json::from_slice(&std::fs::read(json)?)?)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![]), None);
    }
}
