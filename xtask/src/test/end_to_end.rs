//! `cargo xtask run` from input to output, judged by coreutils.

use super::cases::{Case, Outcome};
use super::inputs::{Input, compare, count_with_coreutils};
use crate::tool;
use anyhow::{Result, bail};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The faults under which results must still be exact.
const FAULTS: &str = "loss=0.01,reorder=0.01,corrupt=0.001";

/// This program once more, so that its whole behaviour is tested: exit status, files, what it leaves behind.
pub fn xtask() -> Command {
    // By way of /proc: cargo may have replaced the file meanwhile.
    Command::new("/proc/self/exe")
}

pub fn cases() -> Vec<Case> {
    use Input::{Binary, Empty, LargeText, LongWord, NoFinalNewline, OneByte, Text};
    // What the quick set has of the full table below.
    let quick = [
        (Text, 4, false),
        (Empty, 2, false),
        (OneByte, 1, false),
        (NoFinalNewline, 4, false),
        (Binary, 2, false),
        (Text, 1, false),
        (Text, 2, true),
        (Binary, 4, true),
    ];
    let mut cases: Vec<Case> = quick.iter().map(|(i, n, faulty)| case(*i, *n, *faulty, false)).collect();
    for input in [Empty, OneByte, NoFinalNewline, Binary, LongWord, Text, LargeText] {
        for nodes in [1, 2, 4, 8] {
            for faulty in [false, true] {
                // One node sends nothing over the fabric.
                let pointless = nodes == 1 && faulty;
                if !pointless && !quick.contains(&(input, nodes, faulty)) {
                    cases.push(case(input, nodes, faulty, true));
                }
            }
        }
    }
    cases
}

fn case(input: Input, nodes: u16, faulty: bool, full: bool) -> Case {
    let faults = if faulty { "-faults" } else { "" };
    let name = format!("wordcount::{}-{nodes}nodes{faults}", input.name());
    Case::new(name, move |log| word_count(input, nodes, faulty, log)).full_if(full)
}

fn word_count(input: Input, nodes: u16, faulty: bool, log: &Path) -> Result<Outcome> {
    let dir = tempfile::tempdir()?;
    let [file, expected, output, json] = ["in", "expected", "out", "json"].map(|name| dir.path().join(name));
    input.write(&file)?;
    count_with_coreutils(&file, &expected, log)?;
    let mut command = xtask();
    command.args(["run", "--nodes", &nodes.to_string()]);
    command.arg("--input").arg(&file).arg("--output").arg(&output).arg("--json").arg(&json);
    if faulty {
        command.args(["--fabric", FAULTS, "--seed", "7"]);
    }
    let limit = if input.large() { Duration::from_secs(900) } else { Duration::from_secs(180) };
    tool::run_ok(&mut command, log, limit)?;
    compare(&expected, &output, log)?;
    check_figures(&json, &expected, std::fs::metadata(&file)?.len(), nodes)?;
    Ok(Outcome::Passed)
}

/// The figures must agree with the result.
fn check_figures(json: &Path, expected: &Path, input_bytes: u64, nodes: u16) -> Result<()> {
    let figures: Value = serde_json::from_slice(&std::fs::read(json)?)?;
    let expected = std::fs::read_to_string(expected)?;
    let counts = expected.lines().filter_map(|l| l.split_once('\t')?.1.parse::<u64>().ok());
    let (distinct, words) = counts.fold((0, 0), |(n, sum), count| (n + 1, sum + count));
    for (name, value) in
        [("input_bytes", input_bytes), ("words", words), ("distinct", distinct), ("nodes", nodes.into())]
    {
        if figures.get(name).and_then(Value::as_u64) != Some(value) {
            bail!("--json says {name}: {:?}, not {value}", figures.get(name));
        }
    }
    if figures.get("app").and_then(Value::as_str) != Some("wordcount") || figures.get("nic").is_none() {
        bail!("--json lacks app or nic");
    }
    let boots = figures.get("boot_ms").and_then(Value::as_array).map(Vec::len);
    if boots != Some(nodes.into()) || !figures.get("elapsed_s").is_some_and(Value::is_number) {
        bail!("--json lacks elapsed_s, or boot_ms of each node");
    }
    Ok(())
}
