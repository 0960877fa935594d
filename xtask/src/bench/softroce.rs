//! `cargo xtask bench softroce`: the appliance's SoftRoCE beside Linux rdma_rxe, in turn, in equal machines on equal
//! fabrics; and what the transport costs by itself, as native code.

use super::gaps::Gaps;
use super::host::Host;
use super::lab::Lab;
use super::pairs::Line;
use super::table::{Table, maybe};
use super::target::{self, Bound, Target};
use crate::perftest::cell::{Cell, Direction, Figure};
use crate::perftest::lab::Lab as AppliancePair;
use crate::{interrupt, paths, run, tool, ui};
use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use qemu::linux::Image;
use qemu::linux::baseline::{RxePair, Wire};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// How often to measure and where the figures go.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// How often both sides are measured, in turn; medians are printed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    runs: u32,
    /// Operations of each latency measurement; those of throughput have more
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = RangedU64ValueParser::<u32>::new().range(100..=100_000))]
    iterations: u32,
    /// Where the figures go, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Refuses to start while the machine is busy, and fails if a target is missed or was not measured
    #[arg(long)]
    strict: bool,
}

/// Small messages that a rate is measured over, for each operation of a latency.
const RATE_FACTOR: u32 = 5;
/// How long the native benchmark may take, building included.
const NATIVE_LIMIT: Duration = Duration::from_secs(900);

/// What is compared, in order: name, unit, and what our share of rxe's figure must be.
const COMPARED: [(&str, &str, Bound); 6] = [
    ("8 B write, p50", "us", Bound::AtMost(0.5)),
    ("8 B read, p50", "us", Bound::AtMost(0.5)),
    ("8 B send, p50", "us", Bound::AtMost(0.5)),
    ("8 B fetch-add, p50", "us", Bound::AtMost(0.5)),
    ("64 B writes", "k/s", Bound::AtLeast(3.0)),
    ("64 KiB writes", "MB/s", Bound::AtLeast(2.0)),
];

/// One run of one side, in the order of [`COMPARED`]; a figure that could not be measured is absent.
type Sample = [Option<f64>; COMPARED.len()];

/// The appliances, by their own perftest; contents are checked too.
fn appliance(lab: &Lab, iterations: u32) -> Result<Sample> {
    const MTU: u32 = 4096;
    let mut pair = AppliancePair::boot(lab.programs.clone(), 1, None, false)?;
    let mut run = |program, size, iterations| {
        let direction = Direction::ApplianceAppliance;
        pair.run(&Cell { program, direction, size, mtu: MTU, loss: 0.0, iterations })
    };
    let mut p50 = |program| Ok::<_, anyhow::Error>(run(program, 8, iterations)?.p50_us());
    let [write, read, send] = [p50("ib_write_lat")?, p50("ib_read_lat")?, p50("ib_send_lat")?];
    let atomic = p50("ib_atomic_lat")?;
    let small = run("ib_write_bw", 64, iterations.saturating_mul(RATE_FACTOR))?;
    let large = run("ib_write_bw", 65536, iterations)?;
    let bytes_per_s = |figure: &Figure| figure.average_mib_s().map(|mib_s| mib_s * f64::from(1 << 20));
    Ok([
        write,
        read,
        send,
        atomic,
        bytes_per_s(&small).map(|rate| rate / 64.0 / 1e3),
        bytes_per_s(&large).map(|rate| rate / 1e6),
    ])
}

/// Linux, by perftest.
fn rxe(lab: &Lab, image: &Image, wire: Wire, iterations: u32) -> Result<Sample> {
    let mut pair = RxePair::boot(&lab.qemu, image, wire)?;
    let mut p50 = |program| Ok::<_, anyhow::Error>(Some(pair.latency(program, 8, iterations)?.p50_us));
    let [write, read, send] = [p50("ib_write_lat")?, p50("ib_read_lat")?, p50("ib_send_lat")?];
    let atomic = p50("ib_atomic_lat")?;
    let small = pair.bandwidth("ib_write_bw", 64, iterations.saturating_mul(RATE_FACTOR))?;
    let large = pair.bandwidth("ib_write_bw", 65536, iterations)?;
    let mb_s = large.average_mib_s * f64::from(1 << 20) / 1e6;
    Ok([write, read, send, atomic, Some(small.message_rate_mpps * 1e3), Some(mb_s)])
}

/// What `cargo bench -p roce` writes.
#[derive(Debug, Deserialize, Serialize)]
struct Native {
    icrc_method: String,
    icrc: Vec<NativeIcrc>,
    transport: Vec<NativeOperation>,
}

#[derive(Debug, Deserialize, Serialize)]
struct NativeIcrc {
    bytes: u64,
    used_gb_per_s: f64,
}

#[derive(Debug, Deserialize, Serialize)]
struct NativeOperation {
    operation: String,
    bytes: u64,
    in_flight: u64,
    packets_ns: f64,
    frames_ns: f64,
    packets_gb_per_s: f64,
    frames_gb_per_s: f64,
}

impl Native {
    fn measure(lab: &Lab) -> Result<Self> {
        let json = lab.dir().join("roce.json");
        let mut cargo = Command::new("cargo");
        cargo.args(["bench", "--quiet", "--package", "roce", "--", "--json"]).arg(&json);
        tool::run_ok(cargo.current_dir(paths::root()), &paths::state()?.join("bench.log"), NATIVE_LIMIT)?;
        serde_json::from_slice(&std::fs::read(json)?).context("the figures of the native benchmark")
    }

    /// A write of so many bytes with the most in flight.
    fn write(&self, bytes: u64) -> Option<&NativeOperation> {
        let writes =
            self.transport.iter().filter(|o| o.operation.eq_ignore_ascii_case("write") && o.bytes == bytes);
        writes.max_by_key(|o| o.in_flight)
    }

    /// The ICRC over the longest run of bytes.
    fn icrc(&self) -> Option<&NativeIcrc> {
        self.icrc.iter().max_by_key(|icrc| icrc.bytes)
    }

    fn table(&self) -> Table {
        let remark = format!(
            "cargo bench -p roce, no emulation; packets: the transport without ICRC; frames: with it, by {}",
            self.icrc_method
        );
        let mut table =
            Table::new("Transport alone, both ends", remark, &["figure", "packets", "frames", "unit"]);
        let mut write = |bytes, what: &str, unit: &str, figures: fn(&NativeOperation) -> [f64; 2]| {
            let [packets, frames] =
                self.write(bytes).map(figures).map_or([None; 2], |figures| figures.map(Some));
            table.row([what.to_owned(), maybe(packets), maybe(frames), unit.to_owned()]);
        };
        write(64, "64 B write", "ns", |o| [o.packets_ns, o.frames_ns]);
        write(4096, "4 KiB write", "GB/s", |o| [o.packets_gb_per_s, o.frames_gb_per_s]);
        let icrc = self.icrc().map(|icrc| icrc.used_gb_per_s);
        table.row(["ICRC".to_owned(), "-".to_owned(), maybe(icrc), "GB/s".to_owned()]);
        table
    }

    fn targets(&self) -> [Target; 2] {
        let ns = self.write(64).map(|o| o.packets_ns);
        let icrc = self.icrc().map(|icrc| icrc.used_gb_per_s);
        [
            Target::new("64 B write without ICRC, both ends, native", ns, "ns", Bound::AtMost(150.0)),
            Target::new("ICRC, native", icrc, "GB/s", Bound::AtLeast(8.0)),
        ]
    }
}

/// Everything measured.
#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    host: Host,
    runs: u32,
    iterations: u32,
    lines: Vec<Line>,
    /// rxe's figures of each run, in the order of the lines: by shared memory, and by stream.
    rxe_by_wire: Vec<[Sample; 2]>,
    native: Option<Native>,
    targets: Vec<Target>,
    /// What could not be measured, and why.
    gaps: Gaps,
}

/// Measures both sides in turn, then the transport alone.
pub fn bench(options: &Options) -> Result<()> {
    let host = Host::look()?;
    match host.busy() {
        Some(busy) if options.strict => bail!("{busy}"),
        Some(busy) => eprintln!("  warning: {busy}"),
        None => {}
    }
    let json = options.json.as_deref().map(|path| run::beside("figures", path)).transpose()?;
    interrupt::watch()?;
    let lab = Lab::new()?;
    let image =
        ui::step("the image of the Linux guests", || Image::build(&paths::target().join("linux-guest")))?;
    let mut gaps = Gaps::default();
    let (mut ours, mut theirs, mut by_wire) = (Vec::new(), Vec::new(), Vec::new());
    for n in 1..=options.runs {
        let step = format!("appliances: {n} of {}", options.runs);
        ours.push(gaps.attempt(&step, || appliance(&lab, options.iterations))?.unwrap_or_default());
        let mut measure = |wire, by| {
            let step = format!("rdma_rxe by {by}: {n} of {}", options.runs);
            Ok::<_, anyhow::Error>(
                gaps.attempt(&step, || rxe(&lab, &image, wire, options.iterations))?.unwrap_or_default(),
            )
        };
        let (memory, stream) = (measure(Wire::Memory, "shared memory")?, measure(Wire::Stream, "stream")?);
        theirs.push(better(&memory, &stream));
        by_wire.push([memory, stream]);
    }
    let native = gaps.attempt("the transport alone, native", || Native::measure(&lab))?;

    let lines = compare(&ours, &theirs);
    let mut targets: Vec<Target> = lines
        .iter()
        .zip(COMPARED)
        .map(|(line, (what, _, bound))| {
            Target::new(format!("{what}, share of rdma_rxe's"), line.ratio, "", bound)
        })
        .collect();
    targets.extend(native.iter().flat_map(Native::targets));
    println!("\n{}\n", host.sentence(options.runs));
    println!("{}", table(&lines).text());
    native.iter().for_each(|native| println!("{}", native.table().text()));
    println!("{}", target::table(&targets, gaps.all()).text());

    let missed: Vec<String> = targets.iter().filter(|t| !t.met).map(|t| t.name.clone()).collect();
    let (runs, iterations) = (options.runs, options.iterations);
    let figures = Figures { host, runs, iterations, lines, rxe_by_wire: by_wire, native, targets, gaps };
    if let Some((file, path)) = json {
        super::write_json(&figures, file, &path)?;
    }
    if options.strict && !missed.is_empty() {
        bail!("not met: {}", missed.join("; "));
    }
    Ok(())
}

/// Of each figure the one that does rxe more credit: what is fast for us need not be for Linux.
fn better(a: &Sample, b: &Sample) -> Sample {
    let mut best = *a;
    for ((best, other), (_, _, bound)) in best.iter_mut().zip(b).zip(COMPARED) {
        let pick = if matches!(bound, Bound::AtMost(_)) { f64::min } else { f64::max };
        *best = match (*best, *other) {
            (Some(a), Some(b)) => Some(pick(a, b)),
            (a, b) => a.or(b),
        };
    }
    best
}

fn compare(ours: &[Sample], theirs: &[Sample]) -> Vec<Line> {
    let column = |runs: &[Sample], n: usize| runs.iter().map(|run| run[n]).collect::<Vec<_>>();
    let line = |(n, (what, unit, _)): (usize, (&'static str, &'static str, Bound))| {
        Line::new(what, unit, &column(ours, n), &column(theirs, n))
    };
    COMPARED.into_iter().enumerate().map(line).collect()
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new(
        "SoftRoCE beside Linux rdma_rxe",
        "both between two q35 machines with 1 processor, path MTU 4096, in turn; the appliance shares memory with the \
         fabric, rdma_rxe is measured by that and by a stream through QEMU, and of each run the better figure counts; by \
         perftest (ib_write_lat, ib_read_lat, ib_send_lat, ib_atomic_lat, ib_write_bw): Debian's, and the appliance's own; \
         write and send are half a round trip; the ratio is the median over the pairs of runs, then the least and the \
         greatest",
        &["figure", "appliance", "rdma_rxe", "unit", "ratio", "of the pairs"],
    );
    lines.iter().for_each(|line| table.row(line.cells()));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_compared_and_absent_ones_miss_their_target() {
        let ours = [[Some(100.0), Some(200.0), None, None, Some(60.0), Some(150.0)]; 2];
        let theirs = [[Some(250.0), Some(300.0), Some(250.0), Some(300.0), Some(17.0), Some(50.0)]; 2];
        let lines = compare(&ours, &theirs);
        assert_eq!(lines[0].ratio, Some(0.4));
        assert_eq!(lines[2].ratio, None);
        assert_eq!(lines[5].ratio, Some(3.0));
        assert_eq!(table(&lines).rows.len(), COMPARED.len());
        assert!(!Target::new("x", lines[2].ratio, "", COMPARED[2].2).met);
    }

    #[test]
    fn rxe_gets_the_better_of_its_two_wires() {
        let a = [Some(250.0), None, Some(9.0), Some(9.0), Some(17.0), Some(50.0)];
        let b = [Some(240.0), Some(1.0), Some(10.0), None, Some(18.0), Some(40.0)];
        assert_eq!(better(&a, &b), [Some(240.0), Some(1.0), Some(9.0), Some(9.0), Some(18.0), Some(50.0)]);
    }

    #[test]
    fn the_native_figures_are_read() {
        let text = r#"{"icrc_method": "Clmul",
            "icrc": [{"bytes": 64, "table_gb_per_s": 1.0, "used_gb_per_s": 4.0},
                     {"bytes": 4096, "table_gb_per_s": 1.0, "used_gb_per_s": 12.0}],
            "transport": [
                {"operation": "WRITE", "bytes": 64, "in_flight": 1, "packets_ns": 200.0, "frames_ns": 300.0,
                 "icrc_ns": 9.0, "packets_gb_per_s": 0.3, "frames_gb_per_s": 0.2},
                {"operation": "WRITE", "bytes": 64, "in_flight": 32, "packets_ns": 100.0, "frames_ns": 150.0,
                 "icrc_ns": 9.0, "packets_gb_per_s": 0.6, "frames_gb_per_s": 0.4}]}"#;
        let native: Native = serde_json::from_str(text).unwrap();
        assert_eq!(native.write(64).map(|o| o.packets_ns), Some(100.0));
        assert!(native.targets().iter().all(|target| target.met));
        assert_eq!(native.table().rows.len(), 3);
    }
}
