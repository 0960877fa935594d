//! `cargo xtask bench times PROGRAM`: LITE's shares of operations as native code, in nanoseconds, by this
//! checkout's benchmark and by that of another commit, in turn.

use super::destination;
use super::gaps::Gaps;
use super::host::Host;
use super::native::{self, Cost};
use super::pairs::Line;
use super::program;
use super::table::Table;
use super::target::{self, Bound, Target};
use anyhow::{Context, Result};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use lab::{interrupt, ui};
use serde::Serialize;
use std::path::PathBuf;

/// The operations of the benchmark, each with the greatest share, relative to the other commit's.
const OPERATIONS: [(&str, f64); 4] =
    [("write 64 B", 0.75), ("read 64 B", 0.75), ("fetch-add", 0.75), ("call 64 B, both ends", 0.65)];

/// The other benchmark, the number of runs, and the destination of the figures.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// The other commit's benchmark, as `cargo bench -p lite --no-run` names it in a checkout of that commit
    #[arg(value_name = "PROGRAM")]
    program: PathBuf,
    /// Number of runs of each side, in turn; the medians of the ratios of neighbouring runs are judged
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    runs: u32,
    /// Few operations in each run
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    destination: destination::Options,
}

#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    host: Host,
    lines: Vec<Line>,
    targets: Vec<Target>,
}

/// The costs of all operations, by run.
#[derive(Default)]
struct Side(Vec<Vec<Cost>>);

impl Side {
    /// Returns LITE's share of an operation in each run, in nanoseconds.
    fn shares(&self, operation: &str) -> Vec<Option<f64>> {
        let share = |costs: &Vec<Cost>| Some(costs.iter().find(|cost| cost.operation == operation)?.lite_ns);
        self.0.iter().map(share).collect()
    }
}

/// Measures both sides in turn. The sides alternate in coming first.
pub(super) fn bench(options: &Options) -> Result<()> {
    let (host, destination) = options.destination.begin()?;
    let theirs = options.program.canonicalize();
    let theirs = theirs.with_context(|| format!("cannot find {}", options.program.display()))?;
    let program = ui::step("the benchmark of LITE", || program::build("lite", "native"))?;
    let (mut ours, mut other) = (Side::default(), Side::default());
    let mut sides = [(program, &mut ours), (theirs, &mut other)];
    for n in 0..options.runs {
        interrupt::check()?;
        ui::step(&format!("LITE's shares, both sides: {} of {}", n + 1, options.runs), || {
            for (program, side) in &mut sides {
                side.0.push(native::costs(program, options.quick)?);
            }
            sides.reverse();
            Ok::<_, anyhow::Error>(())
        })?;
    }
    let (lines, targets) = compare(&ours, &other);
    println!("\n{}\n", host.sentence(options.runs));
    println!("{}\n{}", table(&lines).text(), target::table(&targets, &[]).text());
    let figures = Figures { host, lines, targets };
    destination.end(&figures, &figures.targets, &Gaps::default())
}

fn compare(ours: &Side, theirs: &Side) -> (Vec<Line>, Vec<Target>) {
    let line = |(what, _)| Line::new(what, "ns", &ours.shares(what), &theirs.shares(what));
    let lines: Vec<_> = OPERATIONS.into_iter().map(line).collect();
    let target = |(line, (what, most)): (&Line, (&str, f64))| {
        Target::new(format!("LITE's share of a {what}"), line.ratio, "", Bound::AtMost(most))
    };
    let targets = lines.iter().zip(OPERATIONS).map(target).collect();
    (lines, targets)
}

fn table(lines: &[Line]) -> Table {
    let remark = "cargo bench -p lite of both commits, in turn: the time through LITE minus that of the same work by \
                  verbs alone; medians, and the median of the ratios of neighbouring runs, then the least and the \
                  greatest";
    let heads = ["LITE's share", "now", "the other commit", "unit", "ratio", "of the runs"];
    let mut table = Table::new("LITE's shares beside another commit", remark, &heads);
    lines.iter().for_each(|line| table.row(line.cells()));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_neighbouring_runs_is_judged() {
        let side = |write: [f64; 3]| {
            let cost = |lite_ns| Cost { operation: "write 64 B".into(), all_ns: 1e3, verbs_ns: 1e2, lite_ns };
            Side(write.into_iter().map(|ns| vec![cost(ns)]).collect())
        };
        let (lines, targets) = compare(&side([70.0, 75.0, 200.0]), &side([100.0, 100.0, 100.0]));
        assert_eq!(lines[0].ratio, Some(0.75));
        let met: Vec<_> = targets.iter().map(|target| target.met).collect();
        // The other operations are not in these runs.
        assert_eq!(met, [true, false, false, false]);
        assert!(!compare(&side([76.0; 3]), &side([100.0; 3])).1[0].met);
    }
}
