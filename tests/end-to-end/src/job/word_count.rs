//! Tests of `cargo xtask run` from input to output, judged by coreutils and grep.

use super::capture;
use super::inputs::{Input, compare};
use super::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, bail, ensure};
use lab::cluster::Lab;
use lab::tool;
use qemu::vm::Accel;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// The faults under which results must still be exact.
const FAULTS: [&str; 4] = ["--fabric", "loss=0.01,reorder=0.01,corrupt=0.001", "--seed", "7"];
/// The longest silence of a run on a busy host.
const LIMIT: Duration = Duration::from_secs(1200);
/// Faults that occur often enough that each kind surely happens.
const HARSH: &str = "loss=0.1,dup=0.05,reorder=0.1,corrupt=0.05,delay_us=50";
/// The fabric's counters of each kind of fault.
const KINDS: [&str; 4] = ["lost", "duplicated", "reordered", "corrupted"];
/// The number of seconds for which a node computes without a yield: longer than a lease.
const COMPUTING: &str = "10";
/// The most that the computing node may compute for each read that it serves, in rounds of `apps/bench`'s
/// loop: about 20 ms. On a quiet host under TCG it is 106 rounds, two thirds of which are the pause between
/// two reads.
const MOST_ROUNDS_FOR_A_READ: u64 = 600;
/// The approximate factor by which native execution computes more than translated execution.
const NATIVE: u64 = 30;

pub(crate) fn cases() -> Vec<Case> {
    use Input::{Binary, Empty, LargeText, LongWord, NoFinalNewline, OneByte, SmallText, Text};
    // The part of the full table below that the quick set contains.
    let quick = [
        (Text, 4, false),
        (Empty, 2, false),
        (OneByte, 1, false),
        (NoFinalNewline, 4, false),
        (Binary, 2, false),
        (Text, 1, false),
        (SmallText, 8, false),
        (Text, 2, true),
        (Binary, 4, true),
        (LongWord, 2, false),
    ];
    let mut cases: Vec<Case> =
        quick.iter().map(|(input, nodes, faulty)| case(*input, *nodes, *faulty, &[])).collect();
    for options in [&["--cpus", "2"][..], &["--cpus", "4"], &["--machine", "q35"], &["--memory", "32"]] {
        cases.push(case(SmallText, 2, false, options));
    }
    cases.push(simple("harsh-fabric", harsh));
    cases.push(simple("pcap-is-readable", pcap));
    cases.push(simple("grep-as-grep", grep));
    cases.push(simple("several-inputs", several_inputs));
    cases.push(simple("default-run", default_run));
    cases.push(simple("reads-go-on-while-an-app-computes", progress));
    for input in [Empty, OneByte, NoFinalNewline, Binary, LongWord, Text, LargeText] {
        for nodes in [1, 2, 4, 8] {
            for faulty in [false, true] {
                // One node sends nothing over the fabric.
                let pointless = nodes == 1 && faulty;
                if !pointless && !quick.contains(&(input, nodes, faulty)) {
                    cases.push(case(input, nodes, faulty, &[]).full_if(true));
                }
            }
        }
    }
    for (faulty, options) in [
        (false, &["--cpus", "8"][..]),
        (false, &["--cpus", "2", "--machine", "q35"]),
        (true, &["--cpus", "4"]),
    ] {
        cases.push(case(Text, 4, faulty, options).full_if(true));
    }
    cases.push(case(Text, 16, false, &[]).full_if(true));
    cases
}

fn simple(name: &str, check: fn(&Path) -> Result<()>) -> Case {
    Case::new(format!("run::{name}"), move |log| check(log).map(|()| Outcome::Passed))
}

fn case(input: Input, nodes: u16, faulty: bool, options: &'static [&'static str]) -> Case {
    let faults = if faulty { "-faults" } else { "" };
    let more: String = options.iter().map(|o| o.replace("--", "-")).collect();
    let name = format!("wordcount::{}-{nodes}nodes{faults}{more}", input.name());
    Case::new(name, move |log| {
        word_count(input, nodes, faulty, "softroce", options, log).map(|()| Outcome::Passed)
    })
}

/// One run with an output file and figures.
struct Run {
    dir: TempDir,
    command: Command,
    output: PathBuf,
    json: PathBuf,
}

impl Run {
    fn new(nodes: u16) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let [output, json] = ["out", "json"].map(|name| dir.path().join(name));
        let mut command = xtask();
        command.args(["run", "--nodes", &nodes.to_string()]);
        command.arg("--output").arg(&output).arg("--json").arg(&json);
        Ok(Self { dir, command, output, json })
    }

    /// Runs the command, which must succeed. Returns the figures.
    fn run(&mut self, log: &Path) -> Result<Value> {
        tool::run_ok(&mut self.command, log, LIMIT)?;
        serde_json::from_slice(&std::fs::read(&self.json)?).context("--json is no JSON")
    }
}

/// Counts words on appliances with an RDMA device. The result must equal that of coreutils.
pub(crate) fn word_count(
    input: Input,
    nodes: u16,
    faulty: bool,
    nic: &str,
    options: &[&str],
    log: &Path,
) -> Result<()> {
    let prepared = input.prepared(log)?;
    let mut run = Run::new(nodes)?;
    run.command.arg("--input").arg(&prepared.input).args(["--nic", nic]).args(options);
    if faulty {
        run.command.args(FAULTS);
    }
    let figures = run.run(log)?;
    compare(&prepared.expected, &run.output, log)?;
    check_figures(&figures, &prepared.expected, std::fs::metadata(&prepared.input)?.len(), nodes, nic)?;
    Ok(())
}

/// Runs on a fabric with far more faults than the table's, so that faults of each kind hit even a short run.
fn harsh(log: &Path) -> Result<()> {
    let prepared = Input::Text.prepared(log)?;
    let mut run = Run::new(4)?;
    run.command.arg("--input").arg(&prepared.input).args(["--fabric", HARSH, "--seed", "3"]);
    let figures = run.run(log)?;
    compare(&prepared.expected, &run.output, log)?;
    for kind in KINDS {
        let count = figures.pointer(&format!("/fabric/{kind}")).and_then(Value::as_u64);
        ensure!(count > Some(0), "the fabric's frames {kind}: {count:?}, so nothing was tested");
    }
    Ok(())
}

/// Checks that the figures agree with the result.
fn check_figures(figures: &Value, expected: &Path, input_bytes: u64, nodes: u16, nic: &str) -> Result<()> {
    let expected = std::fs::read_to_string(expected)?;
    let counts = expected.lines().filter_map(|l| l.split_once('\t')?.1.parse::<u64>().ok());
    let (distinct, words) = counts.fold((0, 0), |(n, sum), count| (n + 1, sum + count));
    for (name, value) in
        [("input_bytes", input_bytes), ("words", words), ("distinct", distinct), ("nodes", nodes.into())]
    {
        if figures.get(name).and_then(Value::as_u64) != Some(value) {
            bail!("--json says {name}: {:?}, not {value}", figures.get(name));
        }
    }
    for (name, value) in [("app", "wordcount"), ("nic", nic)] {
        if figures.get(name).and_then(Value::as_str) != Some(value) {
            bail!("--json says {name}: {:?}, not {value}", figures.get(name));
        }
    }
    let boots: Vec<_> = figures.get("boot_ms").and_then(Value::as_array).into_iter().flatten().collect();
    if boots.len() != usize::from(nodes) || !boots.iter().all(|ms| ms.as_f64().is_some_and(|ms| ms > 0.0)) {
        bail!("--json says boot_ms: {boots:?}, which are not {nodes} times");
    }
    ensure!(figures.get("elapsed_s").is_some_and(Value::is_number), "--json lacks elapsed_s");
    Ok(())
}

fn pcap(log: &Path) -> Result<()> {
    let prepared = Input::SmallText.prepared(log)?;
    let mut run = Run::new(2)?;
    let capture = run.dir.path().join("pcap");
    run.command.arg("--input").arg(&prepared.input).arg("--pcap").arg(&capture);
    run.run(log)?;
    compare(&prepared.expected, &run.output, log)?;
    capture::check(&capture)
}

/// Checks the second application on the same framework against the program of the same name.
fn grep(log: &Path) -> Result<()> {
    let prepared = Input::SmallText.prepared(log)?;
    let folder = prepared.input.parent().context("no folder")?;
    let name = prepared.input.file_name().context("no name")?;
    for (flags, pattern) in [(&[][..], "and"), (&["-i"], "LORD"), (&[], "no such line")] {
        let mut run = Run::new(3)?;
        run.command.args(["--app", "grep", "--input"]).arg(name).current_dir(folder);
        for arg in flags.iter().chain([&pattern]) {
            run.command.args(["--arg", arg]);
        }
        run.run(log)?;
        let expected = run.dir.path().join("expected");
        let mut grep = Command::new("grep");
        grep.args(["-a", "-b", "-H", "-F"]).args(flags).args(["-e", pattern]).arg(name);
        let found = grep.current_dir(folder).env("LC_ALL", "C").output()?;
        std::fs::write(&expected, found.stdout)?;
        compare(&expected, &run.output, log)?;
    }
    Ok(())
}

/// Checks that words do not continue from one file into the next, in each of three jobs on one cluster.
fn several_inputs(log: &Path) -> Result<()> {
    let mut run = Run::new(3)?;
    for (name, text) in [("a", "the end"), ("b", "The beginning"), ("c", ""), ("d", "the")] {
        let path = run.dir.path().join(name);
        std::fs::write(&path, text)?;
        run.command.arg("--input").arg(path);
    }
    run.command.args(["--repeat", "3"]);
    let figures = run.run(log)?;
    let earlier = figures.get("earlier").and_then(Value::as_array).context("--json has no earlier jobs")?;
    let distinct = |job: &Value| job.get("distinct").and_then(Value::as_u64);
    let counted: Vec<_> = earlier.iter().chain([&figures]).map(distinct).collect();
    ensure!(counted == [Some(3); 3], "the distinct words of the jobs: {counted:?}");
    let expected = run.dir.path().join("expected");
    std::fs::write(&expected, "the\t3\nbeginning\t1\nend\t1\n")?;
    compare(&expected, &run.output, log)
}

/// Runs without any options, as a new user would: it prints a table of ten words, a line per node, and the
/// times, and writes consoles where they are wanted.
fn default_run(log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let prepared = Input::Text.prepared(log)?;
    let mut command = xtask();
    let said = tool::run_ok(command.arg("run").arg("--console").arg(dir.path()), log, LIMIT)?;
    let expected = std::fs::read_to_string(&prepared.expected)?;
    for line in expected.lines().take(10) {
        let words: Vec<_> = line.split('\t').collect();
        let listed = said.lines().any(|l| l.split_whitespace().eq(words.iter().copied()));
        ensure!(listed, "the ten most frequent words lack `{line}`");
    }
    for node in 0..4 {
        let name = format!("node{node}");
        let told = said.lines().any(|l| l.contains(&name) && l.contains("mapped") && l.contains("reduced"));
        ensure!(told, "nothing is said of what {name} did");
        let console = std::fs::read_to_string(dir.path().join(format!("{name}.log")))?;
        ensure!(console.contains("bootchart: "), "the console of {name} has no boot chart");
    }
    Ok(())
}

/// Checks that a node makes progress while an application computes without yielding: reads of its memory are
/// served, no connection fails, and its lease, which is shorter than the computation, holds. The criterion is
/// the amount of computation for each read that the node serves: a busy host slows both.
fn progress(log: &Path) -> Result<()> {
    let mut run = Run::new(2)?;
    let empty = run.dir.path().join("in");
    std::fs::write(&empty, "")?;
    run.command.args(["--app", "progress", "--arg", COMPUTING, "--input"]).arg(empty);
    let figures = run.run(log)?;
    let reports = figures.get("reports").and_then(Value::as_array).context("there are no reports")?;
    let count = |name: &str| {
        let counts = reports.iter().filter_map(|report| report.pointer(&format!("/counts/{name}"))?.as_u64());
        counts.max().with_context(|| format!("no node reports {name}"))
    };
    let (reads, rounds) = (count("reads")?, count("rounds")?);
    let figures = format!("{reads} reads, {rounds} rounds of computing\n");
    std::io::Write::write_all(&mut std::fs::File::options().append(true).open(log)?, figures.as_bytes())?;
    let most = MOST_ROUNDS_FOR_A_READ * if Lab::get()?.accel == Accel::Tcg { 1 } else { NATIVE };
    ensure!(rounds > 0 && rounds <= reads * most, "{}", figures.trim());
    Ok(())
}
