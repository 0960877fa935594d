//! `cargo xtask bench`: prints all figures that the documentation quotes. Both sides of a comparison are
//! measured in the same run.

mod against;
mod apps;
mod boot;
mod boots;
pub(crate) mod callgrind;
mod connect;
mod cores;
mod cx3;
mod destination;
mod document;
pub(crate) mod figures;
mod floor;
mod gaps;
pub(crate) mod guard;
mod heaps;
mod host;
pub(crate) mod instructions;
mod lab;
mod linux_pair;
mod lite;
mod locks;
mod log;
mod memory;
mod native;
mod nic;
mod nodes;
mod overhead;
mod pairs;
pub(crate) mod path;
mod post;
mod program;
mod qos;
mod raw;
mod rounds;
mod rxe;
mod scaling;
pub(crate) mod shares;
mod size;
mod softroce;
mod stats;
mod steps;
mod stream;
mod table;
mod target;
mod times;
mod warm;
mod words;

pub(crate) use table::Table;

use crate::output;
use ::lab::{interrupt, paths};
use anyhow::{Context, Result, bail};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand, ValueEnum};
use document::Page;
use gaps::Gaps;
use host::Host;
use lab::Lab;
use serde::Serialize;
use std::path::{Path, PathBuf};
use target::Target;
use tempfile::NamedTempFile;

/// The page with the tables of all parts.
const TABLES: &str = "docs/performance/tables.md";

/// `cargo xtask bench` and its optional command.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    separate: Option<Separate>,
    #[command(flatten)]
    options: Options,
}

#[derive(Clone, Debug, Subcommand)]
enum Separate {
    /// Measures LITE alone, as native code: nanoseconds and instructions per operation, and their growth with
    /// regions and memory
    Lite(program::Options),
    /// Compares two cores of LITE with one, as native code: operations per second of processor time and of
    /// time on the wall
    Cores(program::Options),
    /// Compares LITE's shares of operations as native code, in nanoseconds, with those of another commit's
    /// benchmark, in turn
    Times(times::Options),
    /// Compares SoftRoCE with Linux rdma_rxe: latencies, message rate, bandwidth; also measures the transport
    /// alone
    Softroce(linux_pair::Options),
    /// Compares two Linux machines on emulated ConnectX-3 cards with two on rdma_rxe: latencies, message
    /// rate, bandwidth
    Cx3(linux_pair::Options),
    /// Compares native verbs with one physical key as regions and memory grow: a simulation with the emulated
    /// card's cost model
    Scaling(scaling::Options),
    /// Simulates a cluster of many nodes: the time to join, connect, call and leave, and the memory of a node
    /// and of a peer
    Nodes(nodes::Options),
    /// Measures the first call to a peer in a simulated cluster, and the connections that a node makes in a
    /// second
    Connect(connect::Options),
    /// Compares the kernel's allocator, talc, with linked_list_allocator: the cost of allocations
    Heaps(heaps::Options),
    /// Compares the encrypted stream of a job's input to a node with the same bytes in clear over the same
    /// TCP; with --against, compares whole jobs with those of other programs
    Stream(stream::Options),
    /// Compares perftest's and LITE's figures between two appliances with those of another commit's programs,
    /// in turn
    Against(against::Options),
    /// Compares the time from the kernel's entry until it has joined with that of another commit's programs,
    /// in alternating boots on microvm
    Boots(boots::Options),
    /// Compares the time from the kernel's entry to its executor on machines with 900 GB and with 1 GB of
    /// memory, in alternating boots on q35
    Memory(memory::Options),
    /// Boots a node again and again by order of the manager, and compares the time until it has joined again
    /// with the time from the kernel's entry
    Warm(warm::Options),
    /// Compares LITE with perftest between the same two appliances, in turn: latencies, bandwidth
    Overhead(rounds::Options),
    /// Compares the graph applications as native code with GAP, the crate graph of crates.io and networkit
    Apps(apps::Options),
    /// Measures commits of LITE-Log as native code, beside a bare fetch-add and write of the same tasks
    Log(program::Options),
    /// Measures the figures of LITE's paper, as far as machines without cards can show them
    Figures(figures::Options),
    /// Measures high priority between two appliances beside a flood of low priority, by each scheme of
    /// quality of service in turn
    Qos(rounds::Options),
    /// Measures our mlx4 driver as native code: the cost of posting and polling, compared with rdma-core's
    /// instructions in a Linux guest
    Post(destination::Options),
    /// Counts the instructions of RDMA operations between two software RNICs, by callgrind; fails if they
    /// differ from the committed counts by more than 3 %
    Instructions,
    /// Counts the instructions and the wire operations of single operations, compiled as the tests are, by
    /// callgrind; fails if they differ from a committed table
    Guard,
    /// Counts the files of LITE on the path of a 64-byte WRITE, and their instructions, by callgrind; fails
    /// above a budget
    Path,
    /// Counts LITE's share of a write, a read, a fetch-add and a call in instructions, by callgrind; fails
    /// above a budget
    Shares,
    /// Counts the locked instructions of a write, a read, a fetch-add and a call, by callgrind, and tells the
    /// places of LITE that execute them
    Locks,
}

/// The selection of measurements, and the destination of the figures.
#[derive(Args, Clone, Debug)]
struct Options {
    /// Number of repetitions of each measurement, with all sides of a comparison in turn; medians are printed
    /// [default: 5, or 2 with --quick]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    runs: Option<u32>,
    /// Measures only this part; repeatable [default: all]
    #[arg(long, value_name = "PART", value_enum)]
    only: Vec<Part>,
    /// Few repetitions, small inputs, and no Linux guests: only shows that everything works
    #[arg(long)]
    quick: bool,
    /// File for the figures, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// File for the tables, as Markdown; in a file that has `<!-- bench -->` and `<!-- /bench -->`, they are
    /// written between these
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Refuses to start while the machine is busy, and fails if a target is missed or was not measured
    #[arg(long)]
    strict: bool,
}

/// A part of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Part {
    /// Boot charts on microvm and q35, with 1 and 2 processors
    Boot,
    /// LITE between two nodes: reads, writes, calls, ping-pong
    Lite,
    /// Linux rdma_rxe between two equal machines, compared with LITE (which this includes)
    Rxe,
    /// Word count on one node, compared with a single Linux process
    Words,
    /// Size of the image, and the least memory of a node
    Size,
    /// The cost of each step of the data path (part of --quick only if named)
    Steps,
}

/// The amount of measurements.
struct Plan {
    parts: Vec<Part>,
    runs: u32,
    /// Operations per measurement of a latency.
    samples: u32,
    /// The least length of the text to count, in bytes.
    text: u64,
    /// True if Linux guests are run.
    linux: bool,
}

impl Plan {
    fn new(options: &Options) -> Result<Self> {
        let all = Part::value_variants();
        let linux = !options.quick;
        let mut parts = if options.only.is_empty() { all.to_vec() } else { options.only.clone() };
        if options.quick {
            let named = |part: &Part| options.only.contains(part);
            parts.retain(|part| *part != Part::Rxe && (*part != Part::Steps || named(part)));
        }
        if parts.is_empty() {
            bail!("rxe needs Linux guests, which --quick leaves out");
        }
        let (runs, samples, text) = if linux { (5, 1000, 10_000_000) } else { (2, 200, 1_000_000) };
        Ok(Self { parts, runs: options.runs.unwrap_or(runs), samples, text, linux })
    }

    fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}

/// The results. A part that was not measured is `null` in JSON.
#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    host: Host,
    parts: Vec<Part>,
    runs: u32,
    quick: bool,
    boot: Option<Vec<boot::Boot>>,
    lite: Option<Vec<lite::Row>>,
    rxe: Option<rxe::Rxe>,
    words: Option<words::Words>,
    size: Option<size::Size>,
    steps: Option<Vec<steps::Step>>,
    targets: Vec<Target>,
    /// Measurements that failed, with reasons.
    gaps: Gaps,
}

/// Measures the selected parts.
pub(crate) fn bench(bench: &Bench) -> Result<()> {
    match &bench.separate {
        Some(Separate::Lite(options)) => native::bench(options),
        Some(Separate::Times(options)) => times::bench(options),
        Some(Separate::Cores(options)) => cores::bench(options),
        Some(Separate::Softroce(options)) => softroce::bench(options),
        Some(Separate::Cx3(options)) => cx3::bench(options),
        Some(Separate::Scaling(options)) => scaling::bench(options),
        Some(Separate::Nodes(options)) => nodes::bench(options),
        Some(Separate::Connect(options)) => connect::bench(options),
        Some(Separate::Stream(options)) => stream::bench(options),
        Some(Separate::Against(options)) => against::bench(options),
        Some(Separate::Boots(options)) => boots::bench(options),
        Some(Separate::Memory(options)) => memory::bench(options),
        Some(Separate::Warm(options)) => warm::bench(options),
        Some(Separate::Overhead(options)) => overhead::bench(options),
        Some(Separate::Apps(options)) => apps::bench(options),
        Some(Separate::Log(options)) => log::bench(options),
        Some(Separate::Figures(options)) => figures::bench(options),
        Some(Separate::Qos(options)) => qos::bench(options),
        Some(Separate::Heaps(options)) => heaps::bench(options),
        Some(Separate::Post(options)) => post::bench(options),
        Some(Separate::Instructions) => callgrind::bench(instructions::count),
        Some(Separate::Guard) => callgrind::bench(guard::count),
        Some(Separate::Path) => callgrind::bench(path::count),
        Some(Separate::Shares) => callgrind::bench(shares::count),
        Some(Separate::Locks) => callgrind::bench(locks::count),
        None => all(&bench.options),
    }
}

/// Writes figures into the temporary file that then replaces `path`.
fn write_json(figures: &impl Serialize, file: NamedTempFile, path: &Path) -> Result<()> {
    let context = || format!("cannot write {}", path.display());
    let mut text = serde_json::to_string_pretty(figures)?;
    text.push('\n');
    std::fs::write(file.path(), text).with_context(context)?;
    file.persist(path).with_context(context)?;
    Ok(())
}

/// Measures the tables of [`TABLES`] and writes them into the page.
fn write_tables() -> Result<()> {
    let markdown = Some(paths::root().join(TABLES));
    all(&Options { runs: None, only: Vec::new(), quick: false, json: None, markdown, strict: false })
}

fn all(options: &Options) -> Result<()> {
    let plan = Plan::new(options)?;
    let host = Host::ready(options.strict)?;
    let page = options.markdown.as_deref().map(Page::open).transpose()?;
    let json = options.json.as_deref().map(|path| output::beside("figures", path)).transpose()?;
    interrupt::watch()?;
    let lab = Lab::new()?;
    let figures = measure(&plan, host, &lab, options.quick)?;

    let tables = figures.tables();
    tables.iter().for_each(|table| println!("\n{}", table.text()));
    if let Some((file, path)) = json {
        write_json(&figures, file, &path)?;
    }
    if let Some(page) = page {
        let text: String = tables.iter().map(|table| format!("{}\n", table.markdown())).collect();
        page.write(&format!("\n{}\n\n{text}", figures.host.sentence(figures.runs)))?;
    }
    target::judge(options.strict, &figures.targets, figures.gaps.all())
}

/// Runs the parts. A failure of the appliance ends the measurement; a failure of Linux does not.
fn measure(plan: &Plan, host: Host, lab: &Lab, quick: bool) -> Result<Figures> {
    let mut gaps = Gaps::default();
    let compare = plan.linux && (plan.has(Part::Rxe) || plan.has(Part::Words));
    let linux =
        if compare { gaps.attempt("kernel and programs of the Linux guests", || lab.linux())? } else { None };
    let (runs, samples) = (plan.runs, plan.samples);
    let boot = plan.has(Part::Boot).then(|| boot::measure(lab, runs)).transpose()?;
    let (mut lite, mut rxe) = (None, None);
    if plan.has(Part::Lite) || plan.has(Part::Rxe) {
        let linux = linux.as_ref().filter(|_| plan.has(Part::Rxe));
        let (ours, both) = rxe::measure(lab, linux, runs, samples, &mut gaps)?;
        (lite, rxe) = (Some(ours), plan.has(Part::Rxe).then_some(both));
    }
    let words = plan
        .has(Part::Words)
        .then(|| words::measure(lab, linux.as_ref(), runs, plan.text, &mut gaps))
        .transpose()?;
    let size = plan.has(Part::Size).then(|| size::measure(lab)).transpose()?;
    let steps = plan.has(Part::Steps).then(|| steps::measure(lab)).transpose()?;

    let targets = [
        boot.as_deref().map(boot::targets).unwrap_or_default(),
        rxe.iter().map(rxe::Rxe::target).collect(),
        words.as_ref().map(words::Words::targets).unwrap_or_default(),
        size.as_ref().map(size::Size::targets).unwrap_or_default(),
    ]
    .concat();
    Ok(Figures {
        host,
        parts: plan.parts.clone(),
        runs,
        quick,
        boot,
        lite,
        rxe,
        words,
        size,
        steps,
        targets,
        gaps,
    })
}

impl Figures {
    fn tables(&self) -> Vec<Table> {
        let mut tables = Vec::new();
        tables.extend(self.boot.as_deref().map(boot::table));
        tables.extend(self.lite.as_deref().map(lite::table));
        tables.extend(self.rxe.as_ref().map(rxe::Rxe::table));
        tables.extend(self.words.as_ref().map(words::Words::table));
        tables.extend(self.size.as_ref().map(size::Size::table));
        tables.extend(self.steps.as_deref().map(steps::table));
        if !(self.targets.is_empty() && self.gaps.all().is_empty()) {
            tables.push(target::table(&self.targets, self.gaps.all()));
        }
        tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(quick: bool, only: &[Part]) -> Options {
        Options { runs: None, only: only.to_vec(), quick, json: None, markdown: None, strict: false }
    }

    #[test]
    fn the_quick_plan_has_no_linux() {
        let quick = Plan::new(&options(true, &[])).unwrap();
        assert!(!quick.linux && !quick.has(Part::Rxe) && quick.has(Part::Words));
        assert!(!quick.has(Part::Steps));
        assert!(Plan::new(&options(true, &[Part::Steps])).unwrap().has(Part::Steps));
        assert!(Plan::new(&options(false, &[])).unwrap().has(Part::Rxe));
        assert!(Plan::new(&options(true, &[Part::Rxe])).is_err());
        assert_eq!(Plan::new(&options(true, &[Part::Size])).unwrap().parts, [Part::Size]);
    }
}
