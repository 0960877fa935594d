//! `cargo xtask bench cx3`: compares two Linux guests on emulated ConnectX-3 cards with two on rdma_rxe, in
//! turn.

use super::destination::Destination;
use super::gaps::Gaps;
use super::host::Host;
use super::linux_pair::{self, Options, Sample};
use super::pairs::Line;
use super::softroce::better_rxe;
use super::table::Table;
use super::target::{self, Bound, Target};
use anyhow::{Result, anyhow};
use lab::cx3::lab::Wire;
use lab::cx3::{Lab, Plan, Tools, image};
use lab::ui;
use qemu::linux::Release;
use serde::Serialize;
use std::time::Duration;
use tempfile::TempDir;

/// The bounds of our share of rxe's figures, in the order of [`linux_pair::FIGURES`].
const BOUNDS: [Option<Bound>; linux_pair::FIGURES.len()] =
    [Some(Bound::AtMost(0.3)), None, None, None, Some(Bound::AtLeast(10.0)), Some(Bound::AtLeast(5.0))];
/// The time limit of one program, with a large margin.
const TEST: Duration = Duration::from_secs(120);

/// The results of the benchmark.
#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    host: Host,
    /// Major and minor version of the QEMU on both sides.
    qemu: (u32, u32),
    runs: u32,
    iterations: u32,
    lines: Vec<Line>,
    targets: Vec<Target>,
    /// Measurements that failed, with reasons.
    gaps: Gaps,
}

/// Measures both sides in turn, each time in machines that are booted for it.
pub(super) fn bench(options: &Options) -> Result<()> {
    let (host, destination) = options.destination.begin()?;
    let tools = Tools::to_measure()?.map_err(|why| anyhow!("{why}"))?;
    let image = ui::step("the image of the Linux guests", || image(Release::Host, &[]))?;
    let dir = TempDir::with_prefix("ferrolite-")?;
    let mut gaps = Gaps::default();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for n in 1..=options.runs {
        let of = format!("{n} of {}", options.runs);
        let measured = gaps.attempt(&format!("cx3: {of}"), || {
            let mut lab = Lab::boot(&tools, &Plan::default(), &dir.path().join("log"))?;
            let sample = linux_pair::measure(options.iterations, |program, words| {
                lab.perftest(Wire::V2, program, words, TEST)
            });
            lab.end()?;
            Ok(sample)
        })?;
        ours.push(measured.unwrap_or_default());
        theirs.push(better_rxe(&tools.qemu, &image, options.iterations, &of, &mut gaps)?);
    }
    report(options, host, tools.qemu.version, &ours, &theirs, gaps, destination)
}

fn report(
    options: &Options,
    host: Host,
    qemu: (u32, u32),
    ours: &[Sample],
    theirs: &[Sample],
    gaps: Gaps,
    destination: Destination,
) -> Result<()> {
    let lines = linux_pair::compare(ours, theirs);
    let targets = linux_pair::targets(&lines, BOUNDS);
    println!("\n{}\n", host.sentence(options.runs));
    println!("{}", table(&lines).text());
    println!("{}", target::table(&targets, gaps.all()).text());
    let (runs, iterations) = (options.runs, options.iterations);
    let figures = Figures { host, qemu, runs, iterations, lines, targets, gaps };
    destination.end(&figures, &figures.targets, &figures.gaps)
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new(
        "Emulated ConnectX-3 beside Linux rdma_rxe",
        "both two Linux guests with 1 processor on q35 under the same QEMU, path MTU 4096, RoCE v2, in turn; both cards are in \
         one process and on its switch; rdma_rxe is measured over shared memory and over a stream, and of each run the better \
         figure counts; by Debian's perftest (ib_write_lat, ib_read_lat, ib_send_lat, ib_atomic_lat, ib_write_bw); write and \
         send are half a round trip; the ratio is the median over the pairs of runs, then the least and the greatest",
        &["figure", "cx3", "rdma_rxe", "unit", "ratio", "of the pairs"],
    );
    lines.iter().for_each(|line| table.row(line.cells()));
    table
}
