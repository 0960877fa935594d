//! `cargo xtask bench apps`: compares the graph applications, as native code in one process, with other
//! programs on the same graph: those of the GAP benchmark suite if they are there, the crate `graph` of
//! crates.io and networkit of PyPI. All sides run in turn, and their results are compared before times are
//! printed.

mod gap;
mod graph;
mod machine;
mod obedient;
mod results;

use super::gaps::Gaps;
use super::host::Host;
use super::pairs::Line;
use super::program;
use super::table::Table;
use super::target::{self, Bound, Target};
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use gap::Gap;
use graph::Graph;
use lab::{interrupt, tool, ui};
use machine::Machine;
use obedient::Obedient;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The graphs, the peers, the amount of measurements, and the destination of the figures.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// Directory with programs of the GAP benchmark suite: converter, pr_spmv, bfs, cc, sssp, tc
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Binary logarithm of the number of vertices of the graph; repeatable [default: 16, 18 and 20]
    #[arg(long, value_name = "S", value_parser = RangedU64ValueParser::<u32>::new().range(4..=24))]
    scale: Vec<u32>,
    /// Measures only this algorithm; repeatable [default: all]
    #[arg(long, value_name = "ALGORITHM", value_enum)]
    only: Vec<Algorithm>,
    /// Number of runs of each side, in turn [default: 9, or 2 with --quick]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    runs: Option<u32>,
    /// A small graph, few runs, and no networkit: only shows that everything works
    #[arg(long)]
    quick: bool,
    /// Measures native code only, not PageRank under TCG, QEMU's translator
    #[arg(long)]
    native_only: bool,
    /// File for the figures, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Refuses to start while the machine is busy, and fails if a target is missed or was not measured
    #[arg(long)]
    strict: bool,
}

/// An algorithm that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Algorithm {
    /// Ranks, by 20 iterations
    #[value(name = "pagerank")]
    PageRank,
    /// Connected components
    Cc,
    /// Breadth first search
    Bfs,
    /// Shortest paths
    Sssp,
    /// Triangles
    Tc,
}

impl Algorithm {
    const fn name(self) -> &'static str {
        match self {
            Self::PageRank => "pagerank",
            Self::Cc => "cc",
            Self::Bfs => "bfs",
            Self::Sssp => "sssp",
            Self::Tc => "tc",
        }
    }

    /// The greatest accepted share of the time of the peer `peer`, if there is one.
    fn bound(self, peer: &str) -> Option<Bound> {
        match (self, peer) {
            (Self::Tc, _) | (Self::PageRank | Self::Cc | Self::Sssp, "networkit") => None,
            (Self::PageRank, _) => Some(Bound::AtMost(1.0)),
            (Self::Cc | Self::Bfs | Self::Sssp, _) => Some(Bound::AtMost(1.5)),
        }
    }
}

/// The largest scale at which triangles are counted unless `--only` asks for them: no target needs the minutes.
const TRIANGLES: u32 = 18;
/// The most runs of each side under TCG, which is several times slower.
const RUNS_UNDER_TCG: u32 = 3;
/// The greatest accepted share of one node's time that two nodes take for PageRank.
const TWO_NODES: f64 = 0.65;

/// A program to compare with.
enum Peer {
    Obedient(Obedient),
    Gap(Gap),
}

impl Peer {
    fn name(&self) -> &'static str {
        match self {
            Self::Obedient(peer) => peer.name,
            Self::Gap(_) => "GAP",
        }
    }

    fn has(&self, algorithm: Algorithm) -> bool {
        !matches!((self.name(), algorithm), ("crate graph", Algorithm::Bfs) | ("networkit", Algorithm::Tc))
    }

    /// Runs an algorithm, and returns the seconds.
    fn run(&mut self, algorithm: Algorithm) -> Result<f64> {
        match self {
            Self::Obedient(peer) => peer.run(algorithm),
            Self::Gap(gap) => gap.run(algorithm),
        }
    }

    /// Compares the result of the latest run with ours.
    fn check(&mut self, algorithm: Algorithm, ours: &Path, dir: &Path) -> Result<()> {
        let agreed = match self {
            Self::Obedient(peer) => {
                let theirs = dir.join("theirs");
                peer.result(&theirs)?;
                results::compare(algorithm, ours, &theirs)
            }
            Self::Gap(gap) => gap.check(algorithm, ours),
        };
        agreed.with_context(|| format!("{} of {} is not ours", algorithm.name(), self.name()))
    }
}

/// The milliseconds of each run.
type Times = Vec<Option<f64>>;

/// The figures of one algorithm on one graph: ours beside a peer's.
#[derive(Debug, Serialize)]
struct Row {
    machine: Machine,
    scale: u32,
    algorithm: Algorithm,
    peer: &'static str,
    #[serde(flatten)]
    line: Line,
    /// Our least time in parts of the peer's least time: other work on the machine only adds to times.
    least: Option<f64>,
    /// For PageRank, our nanoseconds per edge and iteration.
    edge_ns: Option<f64>,
}

#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    host: Host,
    runs: u32,
    graphs: Vec<Graph>,
    rows: Vec<Row>,
    targets: Vec<Target>,
    /// Measurements that failed, with reasons.
    gaps: Gaps,
}

/// Runs the comparison and prints its figures.
pub(super) fn bench(options: &Options) -> Result<()> {
    let host = Host::ready(options.strict)?;
    let json = options.json.as_deref().map(|path| output::beside("figures", path)).transpose()?;
    ensure!(tool::exists("taskset"), "there is no taskset, which keeps each side on one processor");
    if let Some(dir) = &options.peers {
        ensure!(
            dir.join("converter").is_file(),
            "--peers: there is no GAP program {}/converter",
            dir.display()
        );
    }
    interrupt::watch()?;
    let native = ui::step("the benchmark of our graph applications", || program::build("graph", "native"))?;
    let mut gaps = Gaps::default();
    let programs = Programs {
        native,
        krate: gaps.attempt("crate graph of crates.io", obedient::build_crate)?,
        networkit: match options.quick {
            true => None,
            false => gaps.attempt("networkit of PyPI", obedient::networkit)?,
        },
        gap: options.peers.clone(),
    };
    if programs.gap.is_none() {
        println!("without --peers DIR, GAP is not measured");
    }
    let cpus = obedient::processors()?;
    let runs = options.runs.unwrap_or(if options.quick { 2 } else { 9 });
    let under_tcg = match options.native_only {
        true => None,
        false => gaps.attempt("PageRank under TCG", machine::prepare)?,
    };
    let scales = match (&options.scale[..], options.quick) {
        ([], true) => vec![10],
        ([], false) => vec![16, 18, 20],
        (given, _) => given.to_vec(),
    };
    let dir = tempfile::tempdir().context("cannot make a directory for the graphs")?;
    let (mut graphs, mut rows) = (Vec::new(), Vec::new());
    for scale in scales {
        let graph = ui::step(&format!("a graph of scale {scale}"), || {
            Graph::write(&programs.native, dir.path(), scale)
        })?;
        println!("{graph}");
        let algorithms = options.algorithms(scale);
        let (machine, dir) = (Machine::Native, dir.path());
        let place = Place { machine, graph: &graph, dir, cpus: &cpus, runs, algorithms: &algorithms };
        rows.extend(place.compare(&programs)?);
        match cpus.len() {
            _ if !algorithms.contains(&Algorithm::PageRank) => {}
            1 => _ = gaps.attempt::<()>("two nodes", || bail!("there is one processor"))?,
            _ => rows.push(place.two_nodes(&programs)?),
        }
        if under_tcg.is_some() && algorithms.contains(&Algorithm::PageRank) {
            let (machine, runs) = (Machine::Tcg, runs.min(RUNS_UNDER_TCG));
            rows.extend(
                Place { machine, runs, algorithms: &[Algorithm::PageRank], ..place }.compare(&programs)?,
            );
        }
        graphs.push(graph);
    }
    let targets: Vec<Target> = rows.iter().filter_map(Row::target).collect();
    println!("\n{}\n{}", table(&rows, runs).text(), target::table(&targets, gaps.all()).text());
    let figures = Figures { host, runs, graphs, rows, targets, gaps };
    if let Some((file, path)) = json {
        super::write_json(&figures, file, &path)?;
    }
    target::judge(options.strict, &figures.targets, figures.gaps.all())
}

/// The programs of all sides; a peer is absent if it cannot be had.
struct Programs {
    native: PathBuf,
    krate: Option<PathBuf>,
    networkit: Option<PathBuf>,
    gap: Option<PathBuf>,
}

impl Options {
    /// Returns the algorithms that are measured on a graph.
    fn algorithms(&self, scale: u32) -> Vec<Algorithm> {
        if !self.only.is_empty() {
            return self.only.clone();
        }
        let all = Algorithm::value_variants().iter().copied();
        all.filter(|algorithm| *algorithm != Algorithm::Tc || scale <= TRIANGLES).collect()
    }
}

/// One graph, and the machine and its processors on which it is measured.
struct Place<'a> {
    machine: Machine,
    graph: &'a Graph,
    dir: &'a Path,
    cpus: &'a [u32],
    runs: u32,
    algorithms: &'a [Algorithm],
}

impl Place<'_> {
    fn ours(&self, programs: &Programs, nodes: usize) -> Result<Obedient> {
        let cpus = self.cpus.get(..nodes).unwrap_or(self.cpus);
        let (nodes, source) = (nodes.to_string(), self.graph.source.to_string());
        let mut command = self.machine.command(&programs.native, cpus);
        command.arg("--serve").arg(self.graph.weighted());
        command.args(["--nodes", &nodes, "--source", &source]);
        Obedient::start("ours", command, self.graph)
    }

    fn peers(&self, programs: &Programs) -> Result<Vec<Peer>> {
        let one = self.cpus.get(..1).unwrap_or_default();
        let mut peers = Vec::new();
        for (name, program) in [("crate graph", &programs.krate), ("networkit", &programs.networkit)] {
            let Some(program) = program else { continue };
            if (self.machine, name) == (Machine::Tcg, "networkit") {
                continue;
            }
            let mut command = self.machine.command(program, one);
            if name == "networkit" {
                command.arg(obedient::script());
            }
            command.arg(self.graph.weighted()).arg(self.graph.source.to_string());
            peers.push(Peer::Obedient(Obedient::start(name, command, self.graph)?));
        }
        if let Some(dir) = &programs.gap {
            peers.push(Peer::Gap(Gap::new(dir, self.graph, self.machine, one)?));
        }
        Ok(peers)
    }

    /// Compares one node with all peers, on one processor.
    fn compare(&self, programs: &Programs) -> Result<Vec<Row>> {
        let (mut ours, mut peers) = (self.ours(programs, 1)?, self.peers(programs)?);
        let mut rows = Vec::new();
        for algorithm in self.algorithms.iter().copied() {
            interrupt::check()?;
            let name = algorithm.name();
            let mut peers: Vec<_> = peers.iter_mut().filter(|peer| peer.has(algorithm)).collect();
            if peers.is_empty() {
                println!("{name}: no side to compare with");
                continue;
            }
            ui::step(&format!("{name}{}: results", self.machine.remark()), || {
                ours.run(algorithm)?;
                let file = self.dir.join("ours");
                ours.result(&file)?;
                peers.iter_mut().try_for_each(|peer| {
                    peer.run(algorithm)?;
                    peer.check(algorithm, &file, self.dir)
                })
            })?;
            let (mut own, mut theirs) = (Vec::new(), vec![Vec::new(); peers.len()]);
            ui::step(&format!("{name}{}: {} runs in turn", self.machine.remark(), self.runs), || {
                for _ in 0..self.runs {
                    own.push(Some(1e3 * ours.run(algorithm)?));
                    for (peer, times) in peers.iter_mut().zip(&mut theirs) {
                        times.push(Some(1e3 * peer.run(algorithm)?));
                    }
                }
                Ok(())
            })?;
            for (peer, times) in peers.iter().zip(&theirs) {
                rows.push(self.row(algorithm, name, peer.name(), (&own, times)));
            }
        }
        Ok(rows)
    }

    fn row(
        &self,
        algorithm: Algorithm,
        what: &'static str,
        peer: &'static str,
        (own, theirs): (&Times, &Times),
    ) -> Row {
        let line = Line::new(what, "ms", own, theirs);
        let least = |times: &Times| times.iter().copied().flatten().reduce(f64::min);
        let least = least(own).zip(least(theirs)).map(|(own, theirs)| own / theirs);
        let steps = (algorithm == Algorithm::PageRank).then_some(40 * self.graph.edges);
        let edge_ns = steps.zip(line.ours).map(|(steps, ms)| ms * 1e6 / steps as f64);
        Row { machine: self.machine, scale: self.graph.scale, algorithm, peer, line, least, edge_ns }
    }

    /// Compares two nodes with one, by PageRank.
    fn two_nodes(&self, programs: &Programs) -> Result<Row> {
        let algorithm = Algorithm::PageRank;
        let (mut one, mut two) = (self.ours(programs, 1)?, self.ours(programs, 2)?);
        let files = ["one", "two"].map(|name| self.dir.join(name));
        let [of_one, of_two] = &files;
        ui::step("two nodes: results", || {
            one.run(algorithm)?;
            two.run(algorithm)?;
            one.result(of_one)?;
            two.result(of_two)?;
            let equal = std::fs::read(of_one)? == std::fs::read(of_two)?;
            ensure!(equal, "the ranks of two nodes are not those of one");
            Ok(())
        })?;
        let (mut alone, mut together) = (Vec::new(), Vec::new());
        ui::step(&format!("two nodes: {} runs in turn", self.runs), || {
            for _ in 0..self.runs {
                together.push(Some(1e3 * two.run(algorithm)?));
                alone.push(Some(1e3 * one.run(algorithm)?));
            }
            Ok(())
        })?;
        Ok(self.row(algorithm, "pagerank, two nodes", "one node", (&together, &alone)))
    }
}

impl Row {
    fn target(&self) -> Option<Target> {
        let bound = match self.peer {
            "one node" => Bound::AtMost(TWO_NODES),
            peer => self.algorithm.bound(peer)?,
        };
        let (what, remark) = (self.line.what, self.machine.remark());
        let name = format!("scale {}: {what}{remark}, of {}'s time", self.scale, self.peer);
        Some(Target::new(name, self.line.ratio, "", bound))
    }
}

fn table(rows: &[Row], runs: u32) -> Table {
    let remark = format!(
        "R-MAT, edge factor 16, both directions, without loops, duplicates and lone vertices; {runs} runs of each side in \
         turn on one processor, two nodes on two; medians, and the median, the least and the greatest of the ratios; then the ratio of the least times, for other \
         work on the machine only adds to them. Time \
         of all sides: from the call of the algorithm on a loaded graph to its values, memory for these included; \
         PageRank: 20 iterations. Ours: a job on a node in this process with LITE, one thread for each node, ranks in 64-bit \
         fixed point with the rank of dangling vertices; crate graph: f32 without it, new ranks used at once, and edges \
         relabelled before triangles are counted; GAP: the last trial time of three, f32 without dangling vertices; networkit: f64. \
         Under TCG: all sides by qemu-x86_64, user mode"
    );
    let heads = [
        "machine",
        "scale",
        "algorithm",
        "beside",
        "ours",
        "theirs",
        "unit",
        "ratio",
        "of the runs",
        "least",
        "ns/edge",
    ];
    let mut table = Table::new("Graph applications as native code", remark, &heads);
    for row in rows {
        let [what, ours, theirs, unit, ratio, spread] = row.line.cells();
        let [least, edge] = [row.least, row.edge_ns].map(super::table::maybe);
        let (scale, peer) = (row.scale.to_string(), row.peer.to_owned());
        let machine = row.machine.name().to_owned();
        table.row([machine, scale, what, peer, ours, theirs, unit, ratio, spread, least, edge]);
    }
    table
}
