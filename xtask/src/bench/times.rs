//! `cargo xtask bench times PROGRAM`: LITE's shares of operations as native code, in nanoseconds, by this
//! checkout's benchmark and by that of another commit, in turn.

use super::destination;
use super::gaps::Gaps;
use super::host::Host;
use super::native::{self, Cost};
use super::pairs::Line;
use super::program;
use super::table::{Table, maybe};
use super::target::{self, Bound, Target};
use anyhow::{Context, Result};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use lab::ui;
use serde::Serialize;
use std::path::PathBuf;

/// The operations of the benchmark, each with the greatest share, relative to the other commit's.
const OPERATIONS: [(&str, f64); 4] =
    [("write 64 B", 0.75), ("read 64 B", 0.75), ("fetch-add", 0.75), ("call 64 B, both ends", 0.65)];

/// The number of runs of each side that are reported together.
const STEP: usize = 10;

/// The other benchmark, the number of runs, and the destination of the figures.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// The other commit's benchmark, as `cargo bench -p lite --no-run` names it in a checkout of that commit
    #[arg(value_name = "PROGRAM")]
    program: PathBuf,
    /// Number of runs of each side, in turn; the medians of the ratios of neighbouring runs are judged
    #[arg(long, value_name = "N", default_value_t = 101, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    runs: u32,
    /// Few operations in each run
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    destination: destination::Options,
}

/// The greatest ratio of a run's time by verbs alone to the first decile of its side. A run beyond it was
/// disturbed, for example by another program on the processor's other thread, which also changes LITE's
/// share.
const UNDISTURBED: f64 = 1.1;

#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    host: Host,
    lines: Vec<Shares>,
    targets: Vec<Target>,
}

/// LITE's share of one operation on both sides.
#[derive(Serialize)]
struct Shares {
    /// All pairs of neighbouring runs. They are judged.
    all: Line,
    /// The pairs of which neither run was disturbed.
    undisturbed: Line,
}

/// The costs of all operations, by run.
#[derive(Default)]
struct Side(Vec<Vec<Cost>>);

impl Side {
    /// Returns the cost of an operation in each run.
    fn costs(&self, operation: &str) -> Vec<Option<&Cost>> {
        self.0.iter().map(|costs| costs.iter().find(|cost| cost.operation == operation)).collect()
    }
}

/// Returns for each run whether it was not disturbed.
fn undisturbed(costs: &[Option<&Cost>]) -> Vec<bool> {
    let mut verbs: Vec<f64> = costs.iter().flatten().map(|cost| cost.verbs_ns).collect();
    verbs.sort_by(f64::total_cmp);
    let most = verbs.get(verbs.len() / 10).map_or(0.0, |decile| UNDISTURBED * decile);
    costs.iter().map(|cost| cost.is_some_and(|cost| cost.verbs_ns <= most)).collect()
}

impl Shares {
    fn new(operation: &'static str, ours: &Side, theirs: &Side) -> Self {
        let sides = [ours, theirs].map(|side| side.costs(operation));
        let both: Vec<bool> = {
            let [ours, theirs] = sides.each_ref().map(|costs| undisturbed(costs));
            ours.into_iter().zip(theirs).map(|(ours, theirs)| ours && theirs).collect()
        };
        let line = |counts: &dyn Fn(usize) -> bool| {
            let shares = |costs: &[Option<&Cost>]| -> Vec<_> {
                let of =
                    |(run, cost): (usize, &Option<&Cost>)| cost.filter(|_| counts(run)).map(|c| c.lite_ns);
                costs.iter().enumerate().map(of).collect()
            };
            let [ours, theirs] = sides.each_ref().map(|costs| shares(costs));
            Line::new(operation, "ns", &ours, &theirs)
        };
        Self { all: line(&|_| true), undisturbed: line(&|run| both[run]) }
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
    for first in (1..=options.runs).step_by(STEP) {
        let last = options.runs.min(first + STEP as u32 - 1);
        ui::step(&format!("LITE's shares, both sides: {first} to {last} of {}", options.runs), || {
            for _ in first..=last {
                for (program, side) in &mut sides {
                    side.0.push(native::costs(program, options.quick)?);
                }
                sides.reverse();
            }
            Ok::<_, anyhow::Error>(())
        })?;
    }
    let (lines, targets) = compare(&ours, &other);
    println!("\n{}\n", host.sentence(options.runs));
    println!("{}\n{}", table(&lines).text(), target::table(&targets, &[]).text());
    let figures = Figures { host, lines, targets };
    destination.end(&figures, &figures.targets, &Gaps::default())
}

fn compare(ours: &Side, theirs: &Side) -> (Vec<Shares>, Vec<Target>) {
    let lines: Vec<_> = OPERATIONS.into_iter().map(|(what, _)| Shares::new(what, ours, theirs)).collect();
    let target = |(line, (what, most)): (&Shares, (&str, f64))| {
        Target::new(format!("LITE's share of a {what}"), line.all.ratio, "", Bound::AtMost(most))
    };
    let targets = lines.iter().zip(OPERATIONS).map(target).collect();
    (lines, targets)
}

fn table(lines: &[Shares]) -> Table {
    let remark = "cargo bench -p lite of both commits, in turn: the time through LITE minus that of the same work by \
                  verbs alone; medians of the runs, and the median and the middle half of the ratios of neighbouring \
                  runs; then the median of the ratios of undisturbed pairs, whose time by verbs alone is on both sides at \
                  most a tenth above the first decile, and their number";
    let heads = [
        "LITE's share",
        "now",
        "the other commit",
        "unit",
        "ratio",
        "its middle half",
        "undisturbed",
        "pairs",
    ];
    let mut table = Table::new("LITE's shares beside another commit", remark, &heads);
    for Shares { all, undisturbed } in lines {
        let [what, ours, theirs, unit, ratio, _] = all.cells();
        let pairs = undisturbed.ratios.len().to_string();
        table.row([what, ours, theirs, unit, ratio, all.middle_half(), maybe(undisturbed.ratio), pairs]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A side with these runs of a write: the times by verbs alone, and LITE's shares.
    fn side(runs: &[(f64, f64)]) -> Side {
        let cost = |&(verbs_ns, lite_ns): &(f64, f64)| Cost {
            operation: "write 64 B".into(),
            all_ns: verbs_ns + lite_ns,
            verbs_ns,
            lite_ns,
        };
        Side(runs.iter().map(|run| vec![cost(run)]).collect())
    }

    #[test]
    fn the_median_of_neighbouring_runs_is_judged() {
        let runs = |shares: [f64; 5]| side(&shares.map(|share| (100.0, share)));
        let (lines, targets) = compare(&runs([70.0, 75.0, 200.0, 60.0, 80.0]), &runs([100.0; 5]));
        assert_eq!(lines[0].all.ratio, Some(0.75));
        let met: Vec<_> = targets.iter().map(|target| target.met).collect();
        // The other operations are not in these runs.
        assert_eq!(met, [true, false, false, false]);
        assert!(!compare(&runs([76.0; 5]), &runs([100.0; 5])).1[0].met);
    }

    #[test]
    fn undisturbed_runs_stand_beside_all() {
        let (quiet, busy) = ((100.0, 50.0), (150.0, 150.0));
        let theirs = side(&[(90.0, 100.0); 5]);
        let (lines, targets) = compare(&side(&[quiet, busy, busy, quiet, busy]), &theirs);
        let Shares { all, undisturbed } = &lines[0];
        assert_eq!((all.ratios.len(), all.ratio), (5, Some(1.5)));
        assert_eq!((undisturbed.ratios.len(), undisturbed.ratio), (2, Some(0.5)));
        assert!(!targets[0].met);
    }
}
