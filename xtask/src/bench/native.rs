//! `cargo xtask bench lite`: measures the cost of LITE itself as native code, over an RNIC that completes at
//! once. The instructions of LITE's shares are counted as by `cargo xtask bench shares`.

use super::gaps::Gaps;
use super::host::Host;
use super::program::{self, Options};
use super::shares::{self, Share};
use super::table::{Table, maybe};
use super::target::{self, Bound, Target};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The output of `cargo bench -p lite`.
#[derive(Debug, Deserialize, Serialize)]
struct Native {
    cost: Vec<Cost>,
    scale: Vec<Scale>,
    pace: Vec<Pace>,
}

/// The cost of an operation.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Cost {
    pub operation: String,
    pub all_ns: f64,
    /// The time of the same work by verbs alone.
    pub verbs_ns: f64,
    /// LITE's share: the difference of the two.
    pub lite_ns: f64,
}

#[derive(Debug, Deserialize, Serialize)]
struct Scale {
    by: String,
    size: u64,
    sequence_ns: f64,
    random_ns: f64,
    sequence_ratio: f64,
    random_ratio: f64,
    /// Writes to a single region, each after a load of one random cache line, of as many lines as the handles
    /// fill.
    one_by_line_ns: f64,
    /// Writes to random regions, after other code has run.
    cold_ns: f64,
    cold_ratio: f64,
}

/// The cost of a load of a cache line, by the work between two loads.
#[derive(Debug, Deserialize, Serialize)]
struct Pace {
    between_ns: f64,
    line_ns: f64,
}

/// Instructions of one operation.
#[derive(Debug, Serialize)]
struct Instructions {
    operation: &'static str,
    regions: u32,
    each: f64,
}

#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    host: Host,
    native: Native,
    instructions: Vec<Instructions>,
    shares: Vec<Share>,
    targets: Vec<Target>,
    /// Measurements that failed, with reasons.
    gaps: Gaps,
}

/// The cost of a call as native code, both ends together, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// The whole call.
    pub all_ns: f64,
    /// The time of equal messages by verbs alone.
    pub verbs_ns: f64,
}

/// The operation in the last row of the benchmark's first table.
const LAST: &str = "call 64 B, both ends";

/// Runs the benchmark of this or of an older commit until it has printed its first table, and ends it then:
/// the rest of the benchmark takes many times as long. Returns the costs of all operations, in whole
/// nanoseconds.
pub(super) fn costs(program: &Path, quick: bool) -> Result<Vec<Cost>> {
    Ok(program::until(program, quick, LAST)?.iter().filter_map(|line| cost(line)).collect())
}

/// Reads a row of the benchmark's first table; `None` if the line is another one.
fn cost(line: &str) -> Option<Cost> {
    let (rest, lite_ns) = line.rsplit_once(' ')?;
    let (rest, verbs_ns) = rest.trim_end().rsplit_once(' ')?;
    let (operation, all_ns) = rest.trim_end().rsplit_once(' ')?;
    let [all_ns, verbs_ns, lite_ns] = [all_ns, verbs_ns, lite_ns].map(|word| word.parse().ok());
    Some(Cost { operation: operation.trim().into(), all_ns: all_ns?, verbs_ns: verbs_ns?, lite_ns: lite_ns? })
}

/// Measures a call.
pub(super) fn call(quick: bool) -> Result<Call> {
    let costs = costs(&program::build("lite", "native")?, quick)?;
    let cost = costs.iter().find(|cost| cost.operation == LAST);
    let cost = cost.context("the native benchmark has no call")?;
    Ok(Call { all_ns: cost.all_ns, verbs_ns: cost.verbs_ns })
}

/// Runs all measurements.
pub(super) fn bench(options: &Options) -> Result<()> {
    let (host, destination) = options.destination.begin()?;
    let program = program::build("lite", "native")?;
    let native: Native = program::figures(&program, options.quick)?;
    let mut gaps = Gaps::default();
    let instructions = gaps.attempt("instructions, by valgrind", || count(&program))?.unwrap_or_default();
    let shares =
        gaps.attempt("LITE's shares, by valgrind", || shares::measure(&program))?.unwrap_or_default();
    let mut targets = targets(&native, &instructions);
    targets.extend(shares::targets(&shares));
    for table in tables(&native, &instructions) {
        println!("\n{}", table.text());
    }
    println!("\n{}", shares::table(&shares).text());
    println!("\n{}", target::table(&targets, gaps.all()).text());
    let figures = Figures { host, native, instructions, shares, targets, gaps };
    destination.end(&figures, &figures.targets, &figures.gaps)
}

/// Counts the instructions of an operation, for several numbers of regions.
fn count(program: &Path) -> Result<Vec<Instructions>> {
    [("write", 1), ("write", 1000), ("write", 10_000), ("read", 1), ("read", 1000)]
        .into_iter()
        .map(|(operation, regions)| {
            let each = shares::operation(program, operation, regions)?;
            Ok(Instructions { operation, regions, each })
        })
        .collect()
}

fn tables(native: &Native, instructions: &[Instructions]) -> Vec<Table> {
    let remark = "cargo bench -p lite: two nodes in one thread over an RNIC that completes at once, one operation at a \
                  time; the clock is a counter; verbs alone are a task of the same executor; the difference is LITE's";
    let heads = ["operation", "with LITE, ns", "verbs alone, ns", "LITE, ns"];
    let mut cost = Table::new("LITE alone", remark, &heads);
    for row in &native.cost {
        cost.row([
            row.operation.clone(),
            maybe(Some(row.all_ns)),
            maybe(Some(row.verbs_ns)),
            maybe(Some(row.lite_ns)),
        ]);
    }
    let remark = "medians of 64 B writes, as ratios to those of the first size in sequence; the RNIC moves no bytes here; one \
                  and a line: to one and the same region, after one line of the cache at random, of as many as the \
                  handles fill; after others: at random, when other things have run since and fill the caches";
    let heads = [
        "",
        "in sequence, ns",
        "ratio",
        "at random, ns",
        "ratio",
        "one and a line, ns",
        "after others, ns",
        "ratio",
    ];
    let mut scale = Table::new("LITE as regions and memory grow", remark, &heads);
    for row in &native.scale {
        let figures = [
            row.sequence_ns,
            row.sequence_ratio,
            row.random_ns,
            row.random_ratio,
            row.one_by_line_ns,
            row.cold_ns,
            row.cold_ratio,
        ];
        let [a, b, c, d, e, f, g] = figures.map(|figure| maybe(Some(figure)));
        scale.row([format!("{}: {}", row.by, row.size), a, b, c, d, e, f, g]);
    }
    let remark =
        "no LITE in it: a chain of as many lines as 100,000 handles fill, with arithmetic between two steps";
    let mut pace = Table::new("A line of the cache at random", remark, &["between two, ns", "a line, ns"]);
    for row in &native.pace {
        pace.row([maybe(Some(row.between_ns)), maybe(Some(row.line_ns))]);
    }
    let remark = "by valgrind; RNIC, executor and poller included";
    let heads = ["operation", "regions", "instructions"];
    let mut counts = Table::new("Instructions per operation", remark, &heads);
    for row in instructions {
        counts.row([row.operation.to_owned(), row.regions.to_string(), maybe(Some(row.each))]);
    }
    vec![cost, scale, pace, counts]
}

fn targets(native: &Native, instructions: &[Instructions]) -> Vec<Target> {
    let cost = |name: &str| native.cost.iter().find(|c| c.operation == name).map(|c| c.lite_ns);
    let most = |of: fn(&Scale) -> f64| native.scale.iter().map(of).max_by(f64::total_cmp);
    let spread = |name: &str| {
        let each: Vec<f64> = instructions.iter().filter(|i| i.operation == name).map(|i| i.each).collect();
        let [most, least] = [f64::max, f64::min].map(|pick| each.iter().copied().reduce(pick));
        Some(most? / least?)
    };
    vec![
        Target::new("time of LITE's share of a 64 B write", cost("write 64 B"), "ns", Bound::AtMost(100.0)),
        Target::new("time of LITE's share of a 64 B read", cost("read 64 B"), "ns", Bound::AtMost(100.0)),
        Target::new(
            "time of LITE's share of a call, both ends",
            cost("call 64 B, both ends"),
            "ns",
            Bound::AtMost(600.0),
        ),
        Target::new("slowest size in sequence, ratio", most(|s| s.sequence_ratio), "", Bound::AtMost(1.3)),
        Target::new("slowest size at random, ratio", most(|s| s.random_ratio), "", Bound::AtMost(2.0)),
        Target::new("instructions of a write, most to least", spread("write"), "", Bound::AtMost(1.02)),
        Target::new("instructions of a read, most to least", spread("read"), "", Bound::AtMost(1.02)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_first_table_are_read() {
        let row = cost("call 64 B, both ends         635           245      -407").unwrap();
        assert_eq!((&*row.operation, row.all_ns, row.verbs_ns, row.lite_ns), (LAST, 635.0, 245.0, -407.0));
        assert!(cost("operation              with LITE   verbs alone      LITE").is_none());
        assert!(
            cost("").is_none()
                && cost("ns per operation, one at a time, medians of 11 rounds of 500").is_none()
        );
    }
}
