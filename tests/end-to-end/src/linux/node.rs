//! Tests of a Linux machine as a node beside appliances: `lite-node` and the library over libibverbs and
//! `rdma_rxe`.

use crate::job::disturbed::wait_for;
use crate::job::inputs::{Input, compare};
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, bail, ensure};
use lab::appliances::RdmaNic;
use lab::hosts::{IN_GUEST, Lab, Plan, lite_node, program};
use lab::{paths, tool};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest wait for anything in a guest or for a job, on a busy host.
const LIMIT: Duration = Duration::from_secs(120);
/// The longest time from the death of the process to the end of its job: less than the detection of a silent
/// machine would take.
const NOTICED: Duration = Duration::from_secs(30);
/// The number of appliances.
const APPLIANCES: u16 = 3;
/// Text in the output of the manager's client once the nodes have started a job.
const RUNS: &str = " runs on ";

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        Case::new(format!("linux::{name}"), move |log| check(log).map(|()| Outcome::Passed)).runs(&[
            "--bin",
            "lite-node",
            "--lib",
        ])
    };
    vec![
        case("node-counts-words-beside-appliances-and-dies", word_count),
        case("refused-without-trust-hosts", refused).full_if(true),
        case("examples-in-c-and-python", examples).full_if(true),
    ]
}

/// Starts one Linux machine beside appliances on softroce.
fn beside_appliances(
    manager: &[&str],
    packages: &[&str],
    files: &[(&str, PathBuf)],
    log: &Path,
) -> Result<Lab> {
    let appliances = &vec![RdmaNic::SoftRoce; APPLIANCES.into()];
    let machines = &[RdmaNic::SoftRoce];
    Lab::start(&Plan { appliances, machines, manager, packages, files, ..Plan::default() }, log)
}

/// Counts words on a Linux process and three appliances. The process is killed in mid-job: the job must fail
/// and name it, and the appliances must continue.
fn word_count(log: &Path) -> Result<()> {
    let mut lab = beside_appliances(&["--trust-hosts"], &[], &[lite_node(log)?], log)?;
    let process = lab.join(0)?;
    lab.members(APPLIANCES + 1, log)?;

    let dir = tempfile::tempdir()?;
    let output = dir.path().join("out");
    let small = Input::SmallText.prepared(log)?;
    let count = |lab: &Lab, nodes: u16| {
        let mut submit = lab.submit("wordcount", &small.input, &output);
        tool::run_ok(submit.args(["--nodes", &nodes.to_string()]), log, LIMIT)?;
        compare(&small.expected, &output, log)
    };
    count(&lab, APPLIANCES + 1)?;

    let large = dir.path().join("large");
    Input::LargeText.write(&large)?;
    let unwanted = dir.path().join("unwanted");
    let said = log.with_extension("killed.log");
    let file = File::create(&said)?;
    let mut submit = lab.submit("wordcount", &large, &unwanted);
    submit.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut child = qemu::die_with_this_thread(&mut submit).spawn()?;
    let begun = wait_for(RUNS, &said, &mut child);
    let guest = lab.guest(0)?;
    let alive = guest.status_of(&process)?.is_none();
    if begun.is_err() || !alive {
        let (_, printed) = guest.printed(&process)?;
        bail!("the job does not begin, or lite-node has ended: {}", String::from_utf8_lossy(&printed).trim());
    }
    guest.signal(&process, "KILL")?;
    let killed = Instant::now();
    let status = tool::wait(&mut child, NOTICED)?.context("the job goes on without its node")?;
    let text = std::fs::read_to_string(&said)?;
    ensure!(!status.success(), "the job succeeded without its node");
    ensure!(text.lines().last().is_some_and(|l| l.contains("(linux0)")), "it does not name the node: {text}");
    ensure!(!unwanted.exists(), "there is an output file");
    let line = format!("noticed within {:.2} s\n", killed.elapsed().as_secs_f64());
    std::io::Write::write_all(&mut File::options().append(true).open(log)?, line.as_bytes())?;

    lab.members(APPLIANCES, log)?;
    count(&lab, APPLIANCES)
}

/// Checks that a manager without `--trust-hosts` refuses a process in a cluster of appliances, with one line
/// that says so.
fn refused(log: &Path) -> Result<()> {
    let mut lab = beside_appliances(&[], &[], &[lite_node(log)?], log)?;
    let command = lab.daemon(0)?;
    let done = lab.guest(0)?.run(&command, LIMIT)?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    ensure!(!done.status.success(), "it joined");
    ensure!(said.lines().count() == 1 && said.contains("--trust-hosts allows it"), "it says: {said}");
    Ok(())
}

/// Runs the library's examples in the Linux machine, against appliances that run the job `echo`.
fn examples(log: &Path) -> Result<()> {
    let library = program("libferrolite.so", log)?;
    let source = paths::root().join("host/capi");
    let demo = paths::state()?.join("demo-c");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(source.join("include"));
    cc.arg(source.join("examples/demo.c")).arg(format!("-Wl,-rpath,{IN_GUEST}"));
    // Linked by name: a program that is linked by a path would look for the library there.
    cc.arg("-L").arg(paths::state()?).args(["-lferrolite", "-lpthread"]);
    tool::run_ok(cc.arg("-o").arg(&demo), log, LIMIT)?;
    let files = [
        ("libferrolite.so", library),
        ("demo-c", demo),
        ("ferrolite.py", source.join("python/ferrolite.py")),
        ("demo.py", source.join("examples/demo.py")),
    ];
    let mut lab = beside_appliances(&["--trust-hosts"], &["python3"], &files, log)?;
    lab.members(APPLIANCES, log)?;

    let dir = tempfile::tempdir()?;
    let (input, output, said) = (dir.path().join("none"), dir.path().join("out"), dir.path().join("said"));
    File::create(&input)?;
    let mut submit = lab.submit("echo", &input, &output);
    let file = File::create(&said)?;
    submit.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut job = qemu::die_with_this_thread(&mut submit).spawn()?;
    wait_for(RUNS, &said, &mut job)?;
    let peers: Vec<String> = (0..APPLIANCES).map(|n| format!("node{n}")).collect();
    let (manager, peers) = (lab.manager()?, peers.join(" "));
    for (program, name, end) in [
        (format!("{IN_GUEST}/demo-c"), "demo-c", ""),
        (format!("python3 {IN_GUEST}/demo.py"), "demo-py", "end"),
    ] {
        let key = format!("{IN_GUEST}/cluster.key");
        let words = format!("{program} {manager} {key} {name} ibverbs=rxe0 {peers} {end}");
        let said = lab.guest(0)?.check(&words, LIMIT)?;
        std::io::Write::write_all(&mut File::options().append(true).open(log)?, said.as_bytes())?;
        ensure!(said.ends_with("all is well\n"), "{name} says: {said}");
    }
    let status = tool::wait(&mut job, LIMIT)?.context("the job `echo` goes on")?;
    ensure!(status.success(), "the job `echo` failed: {}", std::fs::read_to_string(&said)?.trim());
    Ok(())
}
