//! Graph jobs on appliances: the same bytes on any nodes, wrong input, and networkx as a reference.

use super::misuse::refused;
use super::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::tool;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// The longest silence of a run on a busy host.
const LIMIT: Duration = Duration::from_secs(1200);
/// The check of all results by networkx.
const SCRIPT: &str = include_str!("graph.py");
/// The applications with their arguments, and the names of their outputs.
const JOBS: [(&str, &[&str], &str); 6] = [
    ("pagerank", &["iterations=20"], "ranks"),
    ("pagerank", &["tolerance=1e-13"], "converged"),
    ("cc", &[], "components"),
    ("bfs", &["source=6"], "levels"),
    ("sssp", &["source=6", "weights=true"], "distances"),
    ("triangles", &["each=true"], "triangles"),
];

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<Outcome>| Case::new(format!("graph::{name}"), check);
    vec![
        case("same-bytes", |log| same_bytes(&[(3, 2, "softroce")], &JOBS[..1], log)),
        case("wrong-input", wrong_input),
        case("too-large", too_large),
        case("same-bytes-everywhere", |log| {
            let softroce = [(1, 2), (2, 1), (3, 1), (4, 2)].map(|(nodes, cpus)| (nodes, cpus, "softroce"));
            let cards = [(1, 1), (2, 2), (3, 1), (4, 1)].map(|(nodes, cpus)| (nodes, cpus, "cx3"));
            same_bytes(&[softroce, cards].concat(), &JOBS, log)
        })
        .full_if(true),
        case("compact-dataset", compact_dataset).full_if(true),
        case("networkx", networkx).full_if(true),
    ]
}

/// A directory with an edge list.
struct Graph {
    dir: TempDir,
    edges: PathBuf,
}

impl Graph {
    /// Writes a graph of some hundred vertices with weights, a few of them with very many edges.
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let edges = dir.path().join("edges");
        let mut text = String::from("# from to weight\n6 1 3\n");
        let mut state = 1u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..4000 {
            let (width, weight) = (next(600) + 1, next(100));
            writeln!(text, "{} {}\t{weight}", next(800), next(width))?;
        }
        std::fs::write(&edges, text)?;
        Ok(Self { dir, edges })
    }

    /// Runs a job. Returns the path of its output.
    fn run(
        &self,
        (app, args, name): (&str, &[&str], &str),
        (nodes, cpus, nic): (u16, u32, &str),
        log: &Path,
    ) -> Result<PathBuf> {
        let output = self.dir.path().join(format!("{name}-{nodes}-{cpus}-{nic}"));
        let mut command = xtask();
        command.args(["run", "--app", app, "--nic", nic, "--nodes", &nodes.to_string()]);
        command.args(["--cpus", &cpus.to_string(), "--input"]).arg(&self.edges).arg("--output").arg(&output);
        for arg in args {
            command.args(["--arg", arg]);
        }
        tool::run_ok(&mut command, log, LIMIT)?;
        Ok(output)
    }
}

/// Compares the outputs of clusters with that of one node.
fn same_bytes(clusters: &[(u16, u32, &str)], jobs: &[(&str, &[&str], &str)], log: &Path) -> Result<Outcome> {
    let graph = Graph::new()?;
    for job in jobs {
        let alone = std::fs::read(graph.run(*job, (1, 1, "softroce"), log)?)?;
        ensure!(alone.len() > 1000, "{} has an output of {} bytes", job.0, alone.len());
        for cluster in clusters {
            let together = std::fs::read(graph.run(*job, *cluster, log)?)?;
            ensure!(together == alone, "{} has another output with {cluster:?}", job.0);
        }
    }
    Ok(Outcome::Passed)
}

/// Compares a job that reads the compact form as a dataset with one that reads the text.
fn compact_dataset(log: &Path) -> Result<Outcome> {
    let graph = Graph::new()?;
    let of_text = graph.run(("cc", &[], "components"), (1, 1, "softroce"), log)?;
    let of_dataset = graph.dir.path().join("of-dataset");
    let mut command = xtask();
    command.args(["run", "--app", "compact", "--keep", "graph", "--then", "cc", "--nodes", "3", "--input"]);
    tool::run_ok(command.arg(&graph.edges).arg("--output").arg(&of_dataset), log, LIMIT)?;
    ensure!(std::fs::read(of_text)? == std::fs::read(of_dataset)?, "other components");
    Ok(Outcome::Passed)
}

/// Runs jobs with wrong input, which leave no output.
fn wrong_input(log: &Path) -> Result<Outcome> {
    let dir = tempfile::tempdir()?;
    let edges = dir.path().join("edges");
    let path = edges.to_string_lossy();
    // The compact form: its name, no flags, three edges, a checksum, and a part of their 24 bytes.
    let cut = &[&b"FLG1\0\0\0\0\x03"[..], &[0; 41]].concat()[..];
    let wrong: [(&str, &[&str], &[u8], &str); 8] = [
        ("cc", &[], b"1 2\n2 3\n3 many\n", "edges: byte 10: \"many\" is not a target"),
        ("cc", &[], b"1 2\n2 3\n3", "edges: byte 9: the line has no target"),
        ("cc", &[], cut, "edges: byte 50: the file has 50 bytes, and its 3 edges need 56"),
        (
            "pagerank",
            &[],
            b"1 2\n18446744073709551616 1\n",
            "edges: byte 4: the source \"18446744073709551616\" is greater",
        ),
        ("sssp", &["source=1", "weights=true"], b"1 2 3\n2 1\n", "edges: byte 9: the line has no weight"),
        ("bfs", &["source=9"], b"1 2\n", "source=9: the graph has no such vertex"),
        ("pagerank", &["iterations=many"], b"1 2\n", "iterations=many: "),
        ("bfs", &["root=1"], b"1 2\n", "unknown argument \"root=1\"; usage: source=ID"),
    ];
    for (app, args, text, says) in wrong {
        std::fs::write(&edges, text)?;
        let given = args.iter().flat_map(|arg| ["--arg", arg]);
        let args: Vec<&str> =
            ["--nodes", "2", "--app", app, "--input", &path].into_iter().chain(given).collect();
        refused(&args, says, log).with_context(|| format!("{app} {args:?}"))?;
    }
    Ok(Outcome::Passed)
}

/// Runs a graph of 250 MB, for which four nodes have memory and one has not.
fn too_large(log: &Path) -> Result<Outcome> {
    let args = ["--memory", "112", "--app", "cc", "--arg", "generate=uniform", "--arg", "scale=17"];
    let args: Vec<&str> = args.into_iter().chain(["--arg", "degree=16"]).collect();
    let on = |nodes| args.iter().copied().chain(["--nodes", nodes]).collect::<Vec<_>>();
    refused(&on("1"), "too little memory: needs 256 MB", log)?;
    tool::run_ok(xtask().arg("run").args(on("4")), log, LIMIT)?;
    Ok(Outcome::Passed)
}

/// Checks all results by networkx, which pip fetches into an environment of its own.
fn networkx(log: &Path) -> Result<Outcome> {
    let graph = Graph::new()?;
    let environment = graph.dir.path().join("python");
    let script = graph.dir.path().join("check.py");
    std::fs::write(&script, SCRIPT)?;
    let python = environment.join("bin/python");
    let fetched = tool::run_ok(Command::new("python3").args(["-m", "venv"]).arg(&environment), log, LIMIT)
        .and_then(|_| {
            let pip = ["-m", "pip", "install", "--quiet", "networkx", "numpy", "scipy"];
            tool::run_ok(Command::new(&python).args(pip), log, LIMIT)
        });
    if let Err(error) = fetched {
        return Ok(Outcome::Skipped(format!("networkx cannot be had: {error:#}")));
    }
    let mut check = Command::new(&python);
    check.arg(&script).arg(&graph.edges);
    for job in JOBS {
        check.arg(graph.run(job, (3, 1, "softroce"), log)?);
    }
    tool::run_ok(&mut check, log, LIMIT).context("networkx has other results")?;
    Ok(Outcome::Passed)
}
