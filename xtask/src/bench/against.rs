//! `cargo xtask bench against DIR`: measures perftest and LITE between two appliances, with this checkout's
//! programs and with those of another commit, in turn, in one run on one machine.

use super::host::Host;
use super::lab::Lab;
use super::lite;
use super::stats::{median, median_of};
use super::table::{Table, maybe, number};
use super::target::{self, Bound, Target};
use crate::output;
use anyhow::{Context, Result, ensure};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use lab::appliances::Programs;
use lab::perftest::cell::{Cell, Direction, Figure};
use lab::perftest::lab::Lab as AppliancePair;
use lab::perftest::plan::Plan;
use lab::{interrupt, ui};
use serde::Serialize;
use std::path::PathBuf;

/// The greatest accepted cost of an operation, relative to its cost with the other programs.
const TARGET: f64 = 1.10;
/// Operations for each latency of LITE.
const LITE_SAMPLES: u32 = 300;
const MTU: u32 = 4096;
/// The cells of perftest: program, bytes, iterations. Each is run twice, and the second run counts: QEMU
/// translates the code during the first.
const CELLS: [(&str, u32, u32); 9] = [
    ("ib_write_lat", 8, 500),
    ("ib_read_lat", 8, 500),
    ("ib_send_lat", 8, 500),
    ("ib_atomic_lat", 8, 500),
    ("ib_write_lat", 65536, 120),
    ("ib_read_lat", 65536, 120),
    ("ib_send_lat", 65536, 120),
    ("ib_write_bw", 65536, 400),
    ("ib_read_bw", 65536, 400),
];

/// The other programs, the number of rounds, and the destination of the figures.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// Directory with the other kernel (`ferrolite.elf`) and manager (`ferrolite`), as built in a
    /// checkout of that commit
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Number of measurements of each side, in turn; the medians of the rounds' ratios are judged
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    runs: u32,
    /// File for the figures, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Refuses to start while the machine is busy, and fails if a figure is worse by more than 10 %
    #[arg(long)]
    strict: bool,
}

/// One figure of one side in one round.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    name: String,
    unit: &'static str,
    value: f64,
    /// True if a larger value is better.
    rate: bool,
}

/// The figures of both sides in one round, in the same order.
#[derive(Serialize)]
struct Round {
    ours: Vec<Sample>,
    theirs: Vec<Sample>,
}

impl Round {
    /// Returns the figures that both sides have measured. Each may measure something that the other does not
    /// know yet, or no longer.
    fn of(mut ours: Vec<Sample>, mut theirs: Vec<Sample>) -> Self {
        let has = |side: &[Sample], name: &str| side.iter().any(|sample| sample.name == name);
        theirs.retain(|sample| has(&ours, &sample.name));
        ours.retain(|sample| has(&theirs, &sample.name));
        Self { ours, theirs }
    }

    /// Returns the cost of figure `index` with our programs, relative to the other programs.
    fn cost(&self, index: usize) -> Option<f64> {
        let (ours, theirs) = (self.ours.get(index)?, self.theirs.get(index)?);
        Some(if ours.rate { theirs.value / ours.value } else { ours.value / theirs.value })
    }
}

#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    host: Host,
    rounds: Vec<Round>,
    targets: Vec<Target>,
}

/// Measures both sides in turn.
pub(super) fn bench(options: &Options) -> Result<()> {
    let other = Programs::given(&options.dir)?;
    let host = Host::ready(options.strict)?;
    let json = options.json.as_deref().map(|path| output::beside("figures", path)).transpose()?;
    interrupt::watch()?;
    let lab = Lab::new()?;
    let mut rounds = Vec::new();
    for n in 1..=options.runs {
        let side = |programs: &Programs, whose: &str| {
            interrupt::check()?;
            let step = format!("{whose}: {n} of {}", options.runs);
            ui::step(&step, || measure(&lab, programs))
        };
        // The sides alternate in coming first.
        let round = if n % 2 == 1 {
            let theirs = side(&other, "the other programs")?;
            Round::of(side(&lab.programs, "these programs")?, theirs)
        } else {
            let ours = side(&lab.programs, "these programs")?;
            Round::of(ours, side(&other, "the other programs")?)
        };
        ensure!(!round.ours.is_empty(), "the two sides measure nothing in common");
        rounds.push(round);
    }
    let targets = targets(&rounds);
    println!("\n{}\n{}", table(&rounds).text(), target::table(&targets, &[]).text());
    let figures = Figures { host, rounds, targets };
    if let Some((file, path)) = json {
        super::write_json(&figures, file, &path)?;
    }
    target::judge(options.strict, &figures.targets, &[])
}

/// Returns all figures of one side, from machines that are booted for it.
fn measure(lab: &Lab, programs: &Programs) -> Result<Vec<Sample>> {
    let mut samples = perftest(programs)?;
    for row in lite::run_of(lab, programs, LITE_SAMPLES)? {
        let name = format!("LITE {} {} B", row.what, row.bytes);
        if let Some(value) = row.p50_us {
            samples.push(Sample { name: name.clone(), unit: "us", value, rate: false });
        }
        if let Some(value) = row.mb_s {
            samples.push(Sample { name, unit: "MB/s", value, rate: true });
        }
    }
    Ok(samples)
}

fn perftest(programs: &Programs) -> Result<Vec<Sample>> {
    let mut pair = AppliancePair::boot(programs.clone(), &Plan::default())?;
    let mut samples = Vec::new();
    for (program, size, iterations) in CELLS {
        let direction = Direction::ApplianceAppliance;
        let cell = Cell { program, direction, size, mtu: MTU, loss: 0.0, iterations };
        let mut run = || pair.run(&cell).with_context(|| cell.to_string());
        run()?;
        let (value, unit, rate) = match run()? {
            Figure::Latency { p50_us, .. } => (p50_us, "us", false),
            Figure::Bandwidth(mib_s) => (mib_s, "MiB/s", true),
        };
        samples.push(Sample { name: format!("{program} {size} B"), unit, value, rate });
    }
    Ok(samples)
}

/// Returns the names of the figures, in order.
fn names(rounds: &[Round]) -> impl Iterator<Item = (usize, &Sample)> {
    rounds.first().into_iter().flat_map(|round| round.ours.iter().enumerate())
}

/// Returns the medians of the rounds' ratios. Each is a cost: 2 means half as fast, for latencies and for
/// rates.
fn targets(rounds: &[Round]) -> Vec<Target> {
    names(rounds)
        .map(|(index, sample)| {
            let cost = median_of(rounds, |round| round.cost(index));
            Target::new(sample.name.clone(), cost, "", Bound::AtMost(TARGET))
        })
        .collect()
}

fn table(rounds: &[Round]) -> Table {
    let mut table = Table::new(
        "Between two appliances, beside other programs",
        format!(
            "q35, 1 processor each, TCG; medians of {} rounds, in turn; cost: time for time, of each round, from the least to the most",
            rounds.len()
        ),
        &["figure", "these", "others", "unit", "cost", "least", "most"],
    );
    for (index, sample) in names(rounds) {
        let costs: Vec<f64> = rounds.iter().filter_map(|round| round.cost(index)).collect();
        let value = |side: fn(&Round) -> &Vec<Sample>| {
            maybe(median_of(rounds, |round| Some(side(round).get(index)?.value)))
        };
        table.row([
            sample.name.clone(),
            value(|round| &round.ours),
            value(|round| &round.theirs),
            sample.unit.to_owned(),
            maybe(median(costs.clone())),
            costs.iter().copied().reduce(f64::min).map_or_else(|| "-".into(), number),
            costs.iter().copied().reduce(f64::max).map_or_else(|| "-".into(), number),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(ours: [f64; 2], theirs: [f64; 2]) -> Round {
        let side = |[us, rate]: [f64; 2]| {
            vec![
                Sample { name: "latency".into(), unit: "us", value: us, rate: false },
                Sample { name: "rate".into(), unit: "MB/s", value: rate, rate: true },
            ]
        };
        Round { ours: side(ours), theirs: side(theirs) }
    }

    #[test]
    fn a_cost_above_one_is_worse_for_latencies_and_for_rates() {
        let rounds = [
            round([2.0, 10.0], [1.0, 20.0]),
            round([1.0, 20.0], [1.0, 20.0]),
            round([1.05, 19.0], [1.0, 20.0]),
        ];
        assert_eq!((rounds[0].cost(0), rounds[0].cost(1)), (Some(2.0), Some(2.0)));
        let targets = targets(&rounds);
        assert!(targets.iter().all(|target| target.met), "one bad round of three does not decide");
        assert!(!super::targets(&rounds[..1]).iter().any(|target| target.met));
        assert_eq!(table(&rounds).rows.len(), 2);
    }

    #[test]
    fn figures_of_one_side_only_are_left_out() {
        let Round { ours, mut theirs } = round([1.0, 2.0], [1.0, 2.0]);
        theirs.remove(0);
        let both = Round::of(ours, theirs);
        assert_eq!((both.cost(0), both.cost(1)), (Some(1.0), None));
        assert!(both.ours.iter().all(|sample| sample.name == "rate"));
    }
}
