//! `cargo xtask bench softroce`: compares the appliance's SoftRoCE with Linux rdma_rxe, in turn, in equal
//! machines on equal fabrics, and measures the transport alone as native code.

use super::floor;
use super::gaps::Gaps;
use super::host::Host;
use super::lab::Lab;
use super::linux_pair::{self, Figure, Kind, Options, Sample};
use super::pairs::Line;
use super::raw;
use super::table::{Table, maybe};
use super::target::{self, Bound, Target};
use anyhow::{Context, Result};
use lab::perftest::lab::Lab as AppliancePair;
use lab::perftest::plan::Plan;
use lab::{image, paths, tool, ui};
use qemu::Qemu;
use qemu::linux::Image;
use qemu::linux::baseline::{RxePair, Wire};
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::time::Duration;

/// The time limit of one program on Linux, with a large margin.
const TEST: Duration = Duration::from_secs(120);
/// The time limit of the native benchmark, building included.
const NATIVE_LIMIT: Duration = Duration::from_secs(900);

/// The number of runs of the appliances' program in a turn: as many as Linux has over its two wires, so that
/// the best of equally many values counts on each side.
const RUNS_IN_A_TURN: usize = 2;

/// The bounds of our share of rxe's figures, in the order of [`linux_pair::FIGURES`].
const BOUNDS: [Option<Bound>; linux_pair::FIGURES.len()] = [
    Some(Bound::AtMost(0.10)),
    Some(Bound::AtMost(0.10)),
    Some(Bound::AtMost(0.10)),
    Some(Bound::AtMost(0.10)),
    Some(Bound::AtLeast(12.0)),
    Some(Bound::AtLeast(5.0)),
];

/// The machines of one run, which are measured in turn.
struct Machines {
    appliances: AppliancePair,
    /// Linux over shared memory, and over a stream.
    linux: [RxePair; 2],
}

impl Machines {
    fn boot(lab: &Lab, image: &Image) -> Result<Self> {
        let appliances = AppliancePair::boot(lab.programs.clone(), &Plan::default())?;
        let linux = |wire| RxePair::boot(&lab.qemu, image, wire);
        Ok(Self { appliances, linux: [linux(Wire::Memory)?, linux(Wire::Stream)?] })
    }

    /// Measures the appliances, and Linux over both wires. `of` names the run, for the progress lines.
    fn measure(&mut self, iterations: u32, of: &str, gaps: &mut Gaps) -> Result<[Sample; 3]> {
        let Self { appliances, linux: [memory, stream] } = self;
        let linux = |pair: &mut RxePair, figure: &Figure| {
            figure.by_linux(iterations, |program, options| pair.perftest(program, options, TEST))
        };
        linux_pair::in_turn(
            of,
            gaps,
            [
                ("appliances", &mut |figure| {
                    figure.best(RUNS_IN_A_TURN, || appliance(appliances, figure, iterations))
                }),
                ("rdma_rxe by shared memory", &mut |figure| linux(memory, figure)),
                ("rdma_rxe by stream", &mut |figure| linux(stream, figure)),
            ],
        )
    }
}

/// Measures a figure of the appliances by their own perftest, which also checks contents.
fn appliance(pair: &mut AppliancePair, figure: &Figure, iterations: u32) -> Result<f64> {
    const MTU: u32 = 4096;
    let (program, size, iterations) = (figure.program, figure.size, figure.operations(iterations));
    let measured = raw::measure(pair, &raw::cell(program, size, iterations, MTU))?;
    let value = match figure.kind {
        Kind::Latency => measured.p50_us,
        Kind::Rate => measured.mb_s.map(|mb_s| mb_s * 1e3 / f64::from(size)),
        Kind::Bandwidth => measured.mb_s,
    };
    value.with_context(|| format!("the report of {program} has no such figure"))
}

/// Measures Linux by perftest.
fn rxe(qemu: &Qemu, image: &Image, wire: Wire, iterations: u32) -> Result<Sample> {
    let mut pair = RxePair::boot(qemu, image, wire)?;
    Ok(linux_pair::measure(iterations, |program, options| pair.perftest(program, options, TEST)))
}

/// Measures Linux over both wires, in machines that are booted for it. The better one of each figure counts.
/// `of` names the run, for the progress line.
pub(super) fn better_rxe(
    qemu: &Qemu,
    image: &Image,
    iterations: u32,
    of: &str,
    gaps: &mut Gaps,
) -> Result<Sample> {
    let mut measure = |wire, by| {
        let step = format!("rdma_rxe by {by}: {of}");
        let measured = gaps.attempt(&step, || rxe(qemu, image, wire, iterations))?;
        Ok::<_, anyhow::Error>(measured.unwrap_or_default())
    };
    let (memory, stream) = (measure(Wire::Memory, "shared memory")?, measure(Wire::Stream, "stream")?);
    Ok(linux_pair::better(&memory, &stream))
}

/// The output of `cargo bench -p roce`.
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

    /// Returns the write of that length with the most operations in flight.
    fn write(&self, bytes: u64) -> Option<&NativeOperation> {
        let writes =
            self.transport.iter().filter(|o| o.operation.eq_ignore_ascii_case("write") && o.bytes == bytes);
        writes.max_by_key(|o| o.in_flight)
    }

    /// Returns the ICRC over the longest run of bytes.
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

/// The results of the benchmark.
#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    host: Host,
    runs: u32,
    iterations: u32,
    lines: Vec<Line>,
    /// rxe's figures of each run, in the order of the lines: over shared memory, and over a stream.
    rxe_by_wire: Vec<[Sample; 2]>,
    /// The floor of each run, in the order of the lines: raw frames between the appliances' machines.
    raw_frames: Vec<Sample>,
    native: Option<Native>,
    targets: Vec<Target>,
    /// Measurements that failed, with reasons.
    gaps: Gaps,
}

/// Measures both sides in turn, then the transport alone.
pub(super) fn bench(options: &Options) -> Result<()> {
    let (host, destination) = options.destination.begin()?;
    let lab = Lab::new()?;
    let image =
        ui::step("the image of the Linux guests", || Image::build(&paths::target().join("linux-guest")))?;
    let echo = image::build_for_tests()?.elf;
    let mut gaps = Gaps::default();
    let (mut ours, mut theirs, mut by_wire) = (Vec::new(), Vec::new(), Vec::new());
    let mut floors = Vec::new();
    for n in 1..=options.runs {
        let of = format!("{n} of {}", options.runs);
        let step = format!("raw frames: {of}");
        floors.push(gaps.attempt(&step, || floor::measure(&lab.qemu, &echo))?.unwrap_or_default());
        let machines = gaps.attempt(&format!("machines: {of}"), || Machines::boot(&lab, &image))?;
        let [appliance, memory, stream] = match machines {
            Some(mut machines) => machines.measure(options.iterations, &of, &mut gaps)?,
            None => Default::default(),
        };
        ours.push(appliance);
        theirs.push(linux_pair::better(&memory, &stream));
        by_wire.push([memory, stream]);
    }
    let native = gaps.attempt("the transport alone, native", || Native::measure(&lab))?;

    let lines = linux_pair::compare(&ours, &theirs);
    let mut targets = linux_pair::targets(&lines, BOUNDS);
    targets.extend(native.iter().flat_map(Native::targets));
    println!("\n{}\n", host.sentence(options.runs));
    println!("{}", table(&lines).text());
    println!("{}", floor::table(&floors, &ours, &theirs).text());
    native.iter().for_each(|native| println!("{}", native.table().text()));
    println!("{}", target::table(&targets, gaps.all()).text());

    let (runs, iterations) = (options.runs, options.iterations);
    let figures = Figures {
        host,
        runs,
        iterations,
        lines,
        rxe_by_wire: by_wire,
        raw_frames: floors,
        native,
        targets,
        gaps,
    };
    destination.end(&figures, &figures.targets, &figures.gaps)
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new(
        "SoftRoCE beside Linux rdma_rxe",
        "both between two q35 machines with 1 processor, path MTU 4096; the appliance shares memory with the fabric, \
         rdma_rxe is measured by that and by a stream through QEMU, and of each run the better figure counts; by perftest \
         (ib_write_lat, ib_read_lat, ib_send_lat, ib_atomic_lat, ib_write_bw): Debian's, and the appliance's own; in each \
         run all machines are there at once, each figure is measured in five turns, in each by one run of rdma_rxe over each \
         wire and two runs of the appliance, and the best value of each side counts; write and send are half a round trip; the ratio is the median over the pairs of runs, \
         then the least and the greatest",
        &["figure", "appliance", "rdma_rxe", "unit", "ratio", "of the pairs"],
    );
    lines.iter().for_each(|line| table.row(line.cells()));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

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
