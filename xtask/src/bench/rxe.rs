//! Linux `rdma_rxe` between two machines like ours, over a fabric like ours, beside LITE.

use super::gaps::Gaps;
use super::lab::{Lab, Linux};
use super::lite::{self, PING_PONG, Row};
use super::stats::median_of;
use super::table::{Table, maybe};
use super::target::{Bound, Target};
use crate::{interrupt, ui};
use anyhow::Result;
use qemu::linux::baseline::RxePair;
use serde::Serialize;

/// The ping-pong's share of rxe's.
const TARGET: f64 = 0.5;
/// Size of a message when throughput is measured.
const LARGE: u32 = 65536;

/// What perftest finds on Linux.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Perftest {
    /// `ib_write_lat -s 8`, p50 and p99: half a round trip.
    write_us: (f64, f64),
    /// `ib_read_lat -s 8`, the same for a whole operation.
    read_us: (f64, f64),
    /// `ib_write_bw -s 65536`, in MB (10^6 bytes) per second.
    write_mb_s: f64,
    /// `ib_read_bw -s 65536`.
    read_mb_s: f64,
}

/// Both sides, medians.
#[derive(Debug, Serialize)]
pub struct Rxe {
    lines: Vec<Line>,
}

/// One figure of both sides.
#[derive(Debug, Serialize)]
struct Line {
    what: &'static str,
    unit: &'static str,
    lite: Option<f64>,
    rxe: Option<f64>,
    /// LITE's share of rxe's figure.
    ratio: Option<f64>,
}

/// Measures LITE and, if there is a Linux, rxe, in turn: each time in two machines that are booted for it, while nothing
/// else runs. What fails on Linux is noted in `gaps`; LITE's figures need none.
pub fn measure(
    lab: &Lab,
    linux: Option<&Linux>,
    runs: u32,
    samples: u32,
    gaps: &mut Gaps,
) -> Result<(Vec<Row>, Rxe)> {
    let mut lite = Vec::new();
    let mut rxe = Vec::new();
    for run in 1..=runs {
        interrupt::check()?;
        lite.push(ui::step(&format!("LITE between two nodes: {run} of {runs}"), || lite::run(lab, samples))?);
        let Some(linux) = linux else { continue };
        let step = format!("rdma_rxe between two Linux guests: {run} of {runs}");
        rxe.extend(gaps.attempt(&step, || perftest(&mut RxePair::boot(&lab.qemu, &linux.image)?, samples))?);
    }
    let lite = lite::medians(&lite);
    let compared = compare(&lite, &rxe);
    Ok((lite, compared))
}

fn perftest(pair: &mut RxePair, iterations: u32) -> Result<Perftest> {
    let mib_to_mb = |mib: f64| mib * f64::from(1 << 20) / 1e6;
    let (write, read) =
        (pair.latency("ib_write_lat", 8, iterations)?, pair.latency("ib_read_lat", 8, iterations)?);
    Ok(Perftest {
        write_us: (write.p50_us, write.p99_us),
        read_us: (read.p50_us, read.p99_us),
        write_mb_s: mib_to_mb(pair.bandwidth("ib_write_bw", LARGE, iterations)?.average_mib_s),
        read_mb_s: mib_to_mb(pair.bandwidth("ib_read_bw", LARGE, iterations)?.average_mib_s),
    })
}

fn compare(lite: &[Row], rxe: &[Perftest]) -> Rxe {
    let ours = |what, bytes, figure: fn(&Row) -> Option<f64>| lite::find(lite, what, bytes).and_then(figure);
    let line = |what, unit, lite: Option<f64>, theirs: fn(&Perftest) -> f64| {
        let rxe = median_of(rxe, |run| Some(theirs(run)));
        Line { what, unit, lite, rxe, ratio: lite.zip(rxe).map(|(lite, rxe)| lite / rxe) }
    };
    let large = u64::from(LARGE);
    let lines = vec![
        line("8 B write ping-pong, p50", "us", ours(PING_PONG, 8, |r| r.p50_us), |p| p.write_us.0),
        line("8 B write ping-pong, p99", "us", ours(PING_PONG, 8, |r| r.p99_us), |p| p.write_us.1),
        line("8 B read, p50", "us", ours("read", 8, |r| r.p50_us), |p| p.read_us.0),
        line("8 B read, p99", "us", ours("read", 8, |r| r.p99_us), |p| p.read_us.1),
        line("64 KiB write", "MB/s", ours("write_bw", large, |r| r.mb_s), |p| p.write_mb_s),
        line("64 KiB read", "MB/s", ours("read_bw", large, |r| r.mb_s), |p| p.read_mb_s),
    ];
    Rxe { lines }
}

impl Rxe {
    /// Both sides beside each other.
    pub fn table(&self) -> Table {
        let mut table = Table::new(
            "LITE beside Linux rdma_rxe",
            "both between two q35 machines with 1 processor over the same kind of fabric, path MTU 4096, in turn; Linux \
             by perftest (ib_write_lat, ib_read_lat, ib_write_bw, ib_read_bw) in user space, LITE by apps/bench",
            &["figure", "LITE", "rdma_rxe", "unit", "ratio"],
        );
        for line in &self.lines {
            table.row([
                line.what.to_owned(),
                maybe(line.lite),
                maybe(line.rxe),
                line.unit.to_owned(),
                maybe(line.ratio),
            ]);
        }
        table
    }

    /// The ping-pong is the one that has a target.
    pub fn target(&self) -> Target {
        let ratio = self.lines.first().and_then(|line| line.ratio);
        Target::new("8 B write ping-pong, share of rdma_rxe's", ratio, "", Bound::AtMost(TARGET))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios() {
        let row = |what: &str, bytes, p50_us, mb_s| Row {
            what: what.into(),
            bytes,
            samples: 1,
            p50_us,
            p99_us: p50_us,
            mb_s,
        };
        let lite = [row(PING_PONG, 8, Some(60.0), None), row("write_bw", 65536, None, Some(100.0))];
        let perftest =
            |us| Perftest { write_us: (us, us), read_us: (us, us), write_mb_s: 50.0, read_mb_s: 50.0 };
        let both = compare(&lite, &[perftest(200.0), perftest(100.0), perftest(240.0)]);
        assert_eq!(both.lines[0].ratio, Some(0.3));
        assert_eq!(both.lines[4].ratio, Some(2.0));
        // What LITE has not measured is not compared.
        assert_eq!(both.lines[2].ratio, None);
        assert!(both.target().met);
        assert!(!compare(&lite, &[]).target().met);
    }
}
