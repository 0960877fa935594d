//! Measures two Linux guests by perftest, with any RNIC, so that figures can be compared.

use super::destination;
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

/// The figures in order: name and unit.
pub(super) const FIGURES: [(&str, &str); 6] = [
    ("8 B write, p50", "us"),
    ("8 B read, p50", "us"),
    ("8 B send, p50", "us"),
    ("8 B fetch-add, p50", "us"),
    ("64 B writes", "k/s"),
    ("64 KiB writes", "MB/s"),
];
/// From this index on, larger is better.
const RATES: usize = 4;

/// One run of one side, in the order of [`FIGURES`]. A figure that could not be measured is absent.
pub(super) type Sample = [Option<f64>; FIGURES.len()];

/// The number of small messages over which a rate is measured, for each operation of a latency.
/// QEMU translates the code during the first of them.
pub(super) const RATE_FACTOR: u32 = 20;

/// The number of times that a latency is measured if sides are measured in turn. The lowest of each side
/// counts, because the speed of a virtual machine changes from second to second.
const TURNS: usize = 5;

/// Measures one figure, with its index in [`FIGURES`]. `run` runs a program with options and returns the
/// client's output.
pub(super) fn figure(
    index: usize,
    iterations: u32,
    run: &mut dyn FnMut(&str, &str) -> Result<String>,
) -> Result<f64> {
    let p50 = |printed: &str| Ok(perftest::latency(printed)?.p50_us);
    let small = format!("-s 8 -n {iterations}");
    match index {
        0 => p50(&run("ib_write_lat", &small)?),
        1 => p50(&run("ib_read_lat", &small)?),
        2 => p50(&run("ib_send_lat", &small)?),
        // perftest's atomic programs refuse a size.
        3 => p50(&run("ib_atomic_lat", &format!("-n {iterations}"))?),
        4 => {
            let many = format!("-s 64 -n {}", iterations.saturating_mul(RATE_FACTOR));
            Ok(perftest::bandwidth(&run("ib_write_bw", &many)?)?.message_rate_mpps * 1e3)
        }
        _ => {
            let printed = run("ib_write_bw", &format!("-s 65536 -n {iterations}"))?;
            Ok(perftest::bandwidth(&printed)?.average_mib_s * f64::from(1 << 20) / 1e6)
        }
    }
}

/// Returns a measured figure. Prints the reason if there is none.
fn known(index: usize, measured: Result<Option<f64>>) -> Option<f64> {
    measured.with_context(|| FIGURES[index].0).unwrap_or_else(|e| {
        eprintln!("  warning: not measured: {}", ui::one_line(&e));
        None
    })
}

/// Measures all figures. `run` runs a program with options and returns the client's output. A figure that
/// fails is absent, and the reason is printed.
pub(super) fn measure(iterations: u32, mut run: impl FnMut(&str, &str) -> Result<String>) -> Sample {
    std::array::from_fn(|index| known(index, figure(index, iterations, &mut run).map(Some)))
}

/// A side that measures the figure with that index.
pub(super) type SideOf<'a> = &'a mut dyn FnMut(usize) -> Result<Option<f64>>;

/// Measures all figures of several sides in turn, each latency [`TURNS`] times. The best value of each side
/// counts. A figure that fails is absent, and the reason is printed. `of` names the run, for the progress
/// lines.
pub(super) fn in_turn<const SIDES: usize>(of: &str, mut sides: [SideOf<'_>; SIDES]) -> [Sample; SIDES] {
    let mut samples = [Sample::default(); SIDES];
    for (index, (name, _)) in FIGURES.iter().enumerate() {
        ui::step(&format!("{name}: {of}"), || {
            for _ in 0..if index < RATES { TURNS } else { 1 } {
                for (side, sample) in sides.iter_mut().zip(&mut samples) {
                    let mut next = Sample::default();
                    next[index] = known(index, side(index));
                    *sample = better(sample, &next);
                }
            }
            Ok(())
        })
        .unwrap_or_default();
    }
    samples
}

/// Returns the better value of each figure of two networks: Linux may be fast on another network than
/// appliances are.
pub(super) fn better(a: &Sample, b: &Sample) -> Sample {
    let mut best = *a;
    for (n, (best, other)) in best.iter_mut().zip(b).enumerate() {
        let pick = if n < RATES { f64::min } else { f64::max };
        *best = match (*best, *other) {
            (Some(a), Some(b)) => Some(pick(a, b)),
            (a, b) => a.or(b),
        };
    }
    best
}

/// Returns a line per figure, of runs that followed each other.
pub(super) fn compare(ours: &[Sample], theirs: &[Sample]) -> Vec<Line> {
    let column = |runs: &[Sample], n: usize| runs.iter().map(|run| run[n]).collect::<Vec<_>>();
    let line = |(n, (what, unit)): (usize, (&'static str, &'static str))| {
        Line::new(what, unit, &column(ours, n), &column(theirs, n))
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
