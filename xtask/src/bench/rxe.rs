//! Compares LITE between two appliances with Linux's `rdma_rxe` between two Linux machines of the same
//! kind, over the same kind of fabric.

use super::gaps::Gaps;
use super::lab::{Lab, Linux};
use super::lite::{self, PING_PONG, Row};
use super::pairs::Line;
use super::table::Table;
use super::target::{Bound, Target};
use anyhow::Result;
use lab::{interrupt, ui};
use qemu::linux::baseline::{RxePair, Wire};
use serde::Serialize;

/// The greatest accepted share of rxe's time in the ping-pong.
const TARGET: f64 = 0.5;
/// The length of a message when throughput is measured, in bytes.
const LARGE: u32 = 65536;

/// perftest's results on Linux.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Perftest {
    /// `ib_write_lat -s 8`, p50 and p99: half a round trip, in microseconds.
    write_us: (f64, f64),
    /// `ib_read_lat -s 8`, p50 and p99: a whole operation, in microseconds.
    read_us: (f64, f64),
    /// `ib_write_bw -s 65536`, in MB (10^6 bytes) per second.
    write_mb_s: f64,
    /// `ib_read_bw -s 65536`, in MB (10^6 bytes) per second.
    read_mb_s: f64,
}

/// A figure of LITE: operation, payload bytes, and the column of its row.
type Ours = (&'static str, u64, fn(&Row) -> Option<f64>);

/// Medians of both sides.
#[derive(Debug, Serialize)]
pub(super) struct Rxe {
    lines: Vec<Line>,
}

/// Measures LITE and, if there is a Linux guest, rxe, in turn: each time in two machines that are booted for
/// it, while nothing else runs. Failures on Linux are recorded in `gaps` and do not affect LITE's figures.
pub(super) fn measure(
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
        let boot = || RxePair::boot(&lab.qemu, &linux.image, Wire::Stream);
        rxe.push(gaps.attempt(&step, || perftest(&mut boot()?, samples))?);
    }
    Ok((lite::medians(&lite), compare(&lite, &rxe)))
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

/// Compares pairs of runs, of which the second may have failed.
fn compare(lite: &[Vec<Row>], rxe: &[Option<Perftest>]) -> Rxe {
    let line = |what, unit, (name, bytes, ours): Ours, theirs: fn(&Perftest) -> f64| {
        let lite: Vec<Option<f64>> = lite.iter().map(|run| ours(lite::find(run, name, bytes)?)).collect();
        let rxe: Vec<Option<f64>> = rxe.iter().map(|run| run.as_ref().map(theirs)).collect();
        Line::new(what, unit, &lite, &rxe)
    };
    let large = u64::from(LARGE);
    let lines = vec![
        line("8 B write ping-pong, p50", "us", (PING_PONG, 8, |r| r.p50_us), |p| p.write_us.0),
        line("8 B write ping-pong, p99", "us", (PING_PONG, 8, |r| r.p99_us), |p| p.write_us.1),
        line("8 B read, p50", "us", ("read", 8, |r| r.p50_us), |p| p.read_us.0),
        line("8 B read, p99", "us", ("read", 8, |r| r.p99_us), |p| p.read_us.1),
        line("64 KiB write", "MB/s", ("write_bw", large, |r| r.mb_s), |p| p.write_mb_s),
        line("64 KiB read", "MB/s", ("read_bw", large, |r| r.mb_s), |p| p.read_mb_s),
    ];
    Rxe { lines }
}

impl Rxe {
    /// Returns the table of both sides.
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new(
            "LITE beside Linux rdma_rxe",
            "both between two q35 machines with 1 processor, path MTU 4096, in turn; LITE shares memory with the fabric, \
             Linux has a stream through QEMU, and so MSI-X (`bench softroce` measures Linux both ways); Linux by \
             perftest (ib_write_lat, ib_read_lat, ib_write_bw, ib_read_bw) in user space, LITE by apps/bench; \
             the ratio is the median over the pairs of runs, then the least and the greatest",
            &["figure", "LITE", "rdma_rxe", "unit", "ratio", "of the pairs"],
        );
        self.lines.iter().for_each(|line| table.row(line.cells()));
        table
    }

    /// Returns the target, which exists for the ping-pong only.
    pub(super) fn target(&self) -> Target {
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
        let run = |us| vec![row(PING_PONG, 8, Some(us), None), row("write_bw", 65536, None, Some(100.0))];
        let lite = [run(60.0), run(80.0), run(90.0)];
        let perftest =
            |us| Perftest { write_us: (us, us), read_us: (us, us), write_mb_s: 50.0, read_mb_s: 50.0 };
        let both = compare(&lite, &[Some(perftest(200.0)), Some(perftest(100.0)), None]);
        let ping_pong = &both.lines[0];
        assert_eq!((ping_pong.ours, ping_pong.theirs), (Some(80.0), Some(150.0)));
        assert_eq!((&*ping_pong.ratios, ping_pong.ratio), (&[0.3, 0.8][..], Some(0.55)));
        assert_eq!(ping_pong.spread(), "0.30 to 0.80");
        assert_eq!(both.lines[4].ratio, Some(2.0));
        // A figure that LITE has not measured is not compared.
        assert_eq!(both.lines[2].ratio, None);
        assert!(!both.target().met);
        assert!(compare(&lite[..1], &[Some(perftest(200.0))]).target().met);
        assert!(!compare(&lite, &[]).target().met);
    }
}
