//! Measures two Linux guests by perftest, with any RNIC, so that figures can be compared.

use super::destination;
use super::gaps::Gaps;
use super::pairs::Line;
use super::target::{Bound, Target};
use anyhow::{Context, Result};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use lab::ui;
use qemu::linux::perftest;

/// The amount of measurements, and the destination of the figures.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// Number of measurements of each side, in turn; medians are printed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    pub runs: u32,
    /// Operations of each latency measurement; throughput is measured over more
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = RangedU64ValueParser::<u32>::new().range(100..=100_000))]
    pub iterations: u32,
    #[command(flatten)]
    pub destination: destination::Options,
}

/// A figure, and the program of perftest that measures it.
pub(super) struct Figure {
    pub name: &'static str,
    pub unit: &'static str,
    pub kind: Kind,
    pub program: &'static str,
    /// The length of an operation, in bytes.
    pub size: u32,
    /// The number of operations, for each operation of a latency.
    factor: u32,
}

/// The kind of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The median latency, in microseconds. The lower one is better.
    Latency,
    /// Operations, in thousands per second.
    Rate,
    /// Megabytes per second.
    Bandwidth,
}

impl Figure {
    const fn latency(name: &'static str, program: &'static str) -> Self {
        Self { name, unit: "us", kind: Kind::Latency, program, size: 8, factor: 1 }
    }

    /// Returns the number of operations, where that of a latency is `iterations`.
    pub(super) const fn operations(&self, iterations: u32) -> u32 {
        iterations.saturating_mul(self.factor)
    }

    /// Returns the best value of several runs.
    pub(super) fn best(&self, runs: usize, mut run: impl FnMut() -> Result<f64>) -> Result<f64> {
        let first = run()?;
        (1..runs).try_fold(first, |best, _| Ok(self.better(best, run()?)))
    }

    /// Returns the better one of two values.
    fn better(&self, a: f64, b: f64) -> f64 {
        if self.kind == Kind::Latency { a.min(b) } else { a.max(b) }
    }

    /// Measures the figure between Linux guests. `run` runs a program with options and returns the client's
    /// output.
    pub(super) fn by_linux(
        &self,
        iterations: u32,
        run: impl FnOnce(&str, &str) -> Result<String>,
    ) -> Result<f64> {
        // perftest's atomic programs refuse a size.
        let size = if self.program == "ib_atomic_lat" { String::new() } else { format!("-s {} ", self.size) };
        let printed = run(self.program, &format!("{size}-n {}", self.operations(iterations)))?;
        Ok(match self.kind {
            Kind::Latency => perftest::latency(&printed)?.p50_us,
            Kind::Rate => perftest::bandwidth(&printed)?.message_rate_mpps * 1e3,
            Kind::Bandwidth => perftest::bandwidth(&printed)?.average_mib_s * f64::from(1 << 20) / 1e6,
        })
    }
}

/// The figures, in order.
pub(super) const FIGURES: [Figure; 6] = [
    Figure::latency("8 B write, p50", "ib_write_lat"),
    Figure::latency("8 B read, p50", "ib_read_lat"),
    Figure::latency("8 B send, p50", "ib_send_lat"),
    Figure::latency("8 B fetch-add, p50", "ib_atomic_lat"),
    // QEMU translates the code during the first of many messages.
    Figure {
        name: "64 B writes",
        unit: "k/s",
        kind: Kind::Rate,
        program: "ib_write_bw",
        size: 64,
        factor: 20,
    },
    Figure {
        name: "64 KiB writes",
        unit: "MB/s",
        kind: Kind::Bandwidth,
        program: "ib_write_bw",
        size: 65536,
        factor: 1,
    },
];

/// One run of one side, in the order of [`FIGURES`]. A figure that could not be measured is absent.
pub(super) type Sample = [Option<f64>; FIGURES.len()];

/// Measures all figures between Linux guests. `run` runs a program with options and returns the client's
/// output. A figure that fails is absent, and the reason is printed.
pub(super) fn measure(iterations: u32, mut run: impl FnMut(&str, &str) -> Result<String>) -> Sample {
    FIGURES.map(|figure| match figure.by_linux(iterations, &mut run).context(figure.name) {
        Ok(measured) => Some(measured),
        Err(e) => {
            eprintln!("  warning: not measured: {}", ui::one_line(&e));
            None
        }
    })
}

/// The number of times that a figure is measured if sides are measured in turn. The best value of each side
/// counts, because the speed of a virtual machine changes from second to second.
const TURNS: usize = 5;

/// A side that is measured in turn with others: its name, and the function that measures a figure.
pub(super) type Side<'a> = (&'static str, &'a mut dyn FnMut(&Figure) -> Result<f64>);

/// Measures all figures of several sides in turn, each of them [`TURNS`] times. The best value of each side
/// counts. A figure that fails once is absent, and recorded. `of` names the run, for the progress lines.
pub(super) fn in_turn<const SIDES: usize>(
    of: &str,
    gaps: &mut Gaps,
    mut sides: [Side<'_>; SIDES],
) -> Result<[Sample; SIDES]> {
    let mut samples = [Sample::default(); SIDES];
    for (index, figure) in FIGURES.iter().enumerate() {
        let step = format!("{}: {of}", figure.name);
        let best = ui::step(&step, || {
            let mut measured = [const { Some(Vec::new()) }; SIDES];
            for _ in 0..TURNS {
                for ((name, side), values) in sides.iter_mut().zip(&mut measured) {
                    let Some(known) = values else { continue };
                    match side(figure) {
                        Ok(value) => known.push(value),
                        Err(why) => {
                            gaps.record(&format!("{name}: {step}"), &why)?;
                            *values = None;
                        }
                    }
                }
            }
            Ok(measured.map(|values| values?.into_iter().reduce(|a, b| figure.better(a, b))))
        })?;
        for (sample, best) in samples.iter_mut().zip(best) {
            sample[index] = best;
        }
    }
    Ok(samples)
}

/// Returns the better value of each figure of two networks: Linux may be fast on another network than
/// appliances are.
pub(super) fn better(a: &Sample, b: &Sample) -> Sample {
    std::array::from_fn(|index| match (a[index], b[index]) {
        (Some(a), Some(b)) => Some(FIGURES[index].better(a, b)),
        (a, b) => a.or(b),
    })
}

/// Returns a line per figure, of runs that followed each other.
pub(super) fn compare(ours: &[Sample], theirs: &[Sample]) -> Vec<Line> {
    let column = |runs: &[Sample], n: usize| runs.iter().map(|run| run[n]).collect::<Vec<_>>();
    let line = |(n, figure): (usize, Figure)| {
        Line::new(figure.name, figure.unit, &column(ours, n), &column(theirs, n))
    };
    FIGURES.into_iter().enumerate().map(line).collect()
}

/// Returns the targets for our share of rdma_rxe's figures, where there is a bound.
pub(super) fn targets(lines: &[Line], bounds: [Option<Bound>; FIGURES.len()]) -> Vec<Target> {
    let bounded = lines.iter().zip(bounds).filter_map(|(line, bound)| Some((line, bound?)));
    bounded
        .map(|(line, bound)| {
            Target::new(format!("{}, share of rdma_rxe's", line.what), line.ratio, "", bound)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_of_two_counts() {
        let a = [Some(250.0), None, Some(9.0), Some(9.0), Some(17.0), Some(50.0)];
        let b = [Some(240.0), Some(1.0), Some(10.0), None, Some(18.0), Some(40.0)];
        assert_eq!(better(&a, &b), [Some(240.0), Some(1.0), Some(9.0), Some(9.0), Some(18.0), Some(50.0)]);
    }

    #[test]
    fn the_best_of_several_turns_counts_and_a_figure_that_fails_once_is_absent() {
        let mut values = 10..;
        let mut ours = |_: &Figure| Ok(f64::from(values.next().unwrap_or_default()));
        let mut reads = 0;
        let mut theirs = |figure: &Figure| {
            reads += u32::from(figure.program == "ib_read_lat");
            anyhow::ensure!(reads != 2 || figure.program != "ib_read_lat", "no luck");
            Ok(7.0)
        };
        let mut gaps = Gaps::default();
        let samples = in_turn("1 of 1", &mut gaps, [("ours", &mut ours), ("theirs", &mut theirs)]).unwrap();
        // Each figure took five of our values. The lowest latency and the highest rate count.
        assert_eq!(samples[0], [10.0, 15.0, 20.0, 25.0, 34.0, 39.0].map(Some));
        assert_eq!(samples[1], [Some(7.0), None, Some(7.0), Some(7.0), Some(7.0), Some(7.0)]);
        assert_eq!(gaps.all(), ["theirs: 8 B read, p50: 1 of 1: no luck"]);
        assert_eq!(reads, 2, "a figure that has failed is not measured again");
    }

    #[test]
    fn columns_are_compared_and_absent_ones_miss_their_target() {
        let ours = [[Some(100.0), Some(200.0), None, None, Some(60.0), Some(150.0)]; 2];
        let theirs = [[Some(250.0), Some(300.0), Some(250.0), Some(300.0), Some(17.0), Some(50.0)]; 2];
        let lines = compare(&ours, &theirs);
        assert_eq!((lines[0].ratio, lines[2].ratio, lines[5].ratio), (Some(0.4), None, Some(3.0)));
        let bounds = [None, None, Some(Bound::AtMost(1.0)), None, None, Some(Bound::AtLeast(3.0))];
        let met: Vec<bool> = targets(&lines, bounds).iter().map(|target| target.met).collect();
        assert_eq!(met, [false, true]);
    }

    #[test]
    fn what_fails_is_absent() {
        let sample = measure(100, |program, options| {
            anyhow::ensure!(program != "ib_read_lat", "no luck");
            Ok(if program.ends_with("_lat") {
                assert!(options.ends_with("-n 100"));
                "#bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
                 99% percentile[usec]   99.9% percentile[usec]\n8 100 1.0 9.0 2.5 3.0 0.1 4.0 5.0\n"
                    .to_owned()
            } else {
                "#bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]\n64 500 1.0 10.0 0.25\n"
                    .to_owned()
            })
        });
        assert_eq!((sample[0], sample[1], sample[4]), (Some(2.5), None, Some(250.0)));
    }
}
