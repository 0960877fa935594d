//! Tests of machines and a manager without a job: joining, refusals, last words, idling.

use super::boot::{PANIC, REFUSED};
use super::{drained, epoch, ipv6, killed, patience, power, release, rollout};
use crate::job::disturbed::wait_for;
use crate::job::inputs::{Input, Prepared, compare};
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::appliances::SUCCESS;
use lab::cargo::Profile;
use lab::cluster::Cluster;
use lab::manager::{self, Manager};
use lab::tool;
use qemu::vm::Vm;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest wait for anything on a busy host.
pub(super) const LIMIT: Duration = Duration::from_secs(120);
/// The time for which an idle cluster is watched.
const IDLE: Duration = Duration::from_secs(10);
/// The time between the join and the watching, for the rest of the boot.
const SETTLE: Duration = Duration::from_secs(2);
/// The greatest share of a host processor that an idle node may use.
const IDLE_SHARE: f64 = 0.05;

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        Case::new(format!("cluster::{name}"), move |log| check(log).map(|()| Outcome::Passed))
    };
    vec![
        case("join-and-leave", leave),
        case("shutdown-ends-the-nodes-well", shutdown),
        case("panic-reaches-the-manager", panic),
        case("idle-uses-little", idle),
        case("wrong-key-client", wrong_key_client),
        case("absent-manager-node-without-retry", |log| {
            // The last key counts; nothing listens on port 1.
            refused_option(
                "manager=10.0.2.2:1 retry=off",
                "no manager at 10.0.2.2:1: connection refused",
                log,
            )
        }),
        case("bad-retry-node", |log| refused_option("retry=never", "retry=never: want on or off", log)),
        case("bad-dns-node", |log| {
            refused_option("dns=10.0.2", "dns=10.0.2: want IP addresses, separated by commas", log)
        }),
        case("unknown-nic-node", |log| {
            refused_option(
                "nic=cx9",
                "nic=cx9: want auto, softroce, mlx4 or mlx4:PCI-ADDRESS/PORT:LAYER",
                log,
            )
        }),
        case("unknown-remote-node", |log| {
            refused_option("remote=some", "remote=some: want all, physical, arena or arena:MIB", log)
        }),
        case("too-large-arena-node", |log| {
            refused_option("remote=arena:4096", "remote=arena:4096: no 4096 MiB in one run; ", log)
        }),
        case("absent-card-node", |log| {
            refused_option("nic=mlx4", "nic=mlx4: this machine has no ConnectX-3", log)
        }),
        case("key-as-a-boot-module", module_key),
        case("boot-module-without-a-key", module_without_key),
        case("configuration-by-an-initrd", configuration),
        case("unknown-key-in-an-initrd", bad_configuration),
        case("unknown-lite-setting-node", |log| {
            refused_option("lite.turbo=on", "unknown key `lite.turbo`", log)
        }),
        case("bad-lite-setting-node", |log| {
            refused_option("lite.peers=1", "lite.peers=1: want a number from 2 to 4095", log)
        }),
        case("lite-pools", |log| {
            // The machine has 64 MiB.
            refused_option("lite.bounce=256x8,4Kx8,1Mx200", "209752064 bytes asked", log)
        }),
        case("lite-peers", lite_peers),
        case("lite-silence", lite_silence),
        case("job-outlasts-a-stopped-manager", stopped_manager),
        case("manager-stands-still", |log| stands_still(Duration::from_secs(4), log)),
        case("manager-stands-still-for-long", |log| stands_still(Duration::from_secs(30), log)).full_if(true),
        case("absent-manager-client", absent_manager_client),
        case("busy-port-daemon", busy_port),
    ]
    .into_iter()
    .chain(patience::cases())
    .chain(killed::cases())
    .chain(rollout::cases())
    .chain(power::cases())
    .chain(drained::cases())
    .chain(release::cases())
    .chain(epoch::cases())
    .chain(ipv6::cases())
    .collect()
}

fn leave(log: &Path) -> Result<()> {
    let mut cluster = Cluster::start(2, "selftest=join selftest_s=2", None, log)?;
    for _ in 0..2 {
        cluster.ends(&SUCCESS, LIMIT)?;
        cluster
            .manager
            .wait_for_line("left", LIMIT)
            .context("the manager does not say that the node left")?;
    }
    Ok(())
}

fn shutdown(log: &Path) -> Result<()> {
    let cluster = Cluster::start(2, "", None, log)?;
    cluster.joined(log)?;
    tool::run_ok(&mut cluster.manager.client("shutdown"), log, LIMIT)?;
    cluster.ends(&SUCCESS, LIMIT)?;
    cluster.ends(&SUCCESS, LIMIT)
}

/// Checks that a panicking node ends with the status of a panic, and that the manager knows the reason.
fn panic(log: &Path) -> Result<()> {
    let mut cluster = Cluster::start(1, "selftest=join selftest_s=100 app=panic", None, log)?;
    cluster.ends(&PANIC, LIMIT)?;
    let said = cluster
        .manager
        .wait_for_line("died", LIMIT)
        .context("the manager does not say that the node died")?;
    for part in ["node0", "asked for by app=panic"] {
        ensure!(said.contains(part), "the manager says `{said}`, which lacks `{part}`");
    }
    Ok(())
}

/// Checks an idle cluster by the processor time of its machines, which does not depend on the host's load.
fn idle(log: &Path) -> Result<()> {
    let cluster = Cluster::start(4, "", None, log)?;
    cluster.joined(log)?;
    std::thread::sleep(SETTLE);
    let pids: Vec<u32> = cluster.vms.iter().filter_map(Vm::process).collect();
    ensure!(pids.len() == cluster.vms.len(), "{} machines run, not {}", pids.len(), cluster.vms.len());
    let times = || pids.iter().map(|pid| tool::processor_time(*pid, 2)).collect::<Result<Vec<_>>>();
    let (begun, before) = (Instant::now(), times()?);
    std::thread::sleep(IDLE);
    let (after, elapsed) = (times()?, begun.elapsed());
    for (n, (before, after)) in before.iter().zip(&after).enumerate() {
        let share = (*after - *before).as_secs_f64() / elapsed.as_secs_f64();
        let line = format!("node {n} uses {:.1} % of a processor while idle\n", share * 100.0);
        std::io::Write::write_all(
            &mut std::fs::File::options().append(true).create(true).open(log)?,
            line.as_bytes(),
        )?;
        ensure!(share < IDLE_SHARE, "{}", line.trim());
    }
    Ok(())
}

pub(super) fn refused_option(options: &str, why: &str, log: &Path) -> Result<()> {
    let cluster = Cluster::start(1, options, None, log)?;
    cluster.ends(&REFUSED, LIMIT)?;
    says(&cluster, why)
}

/// Checks that the machine reads the key from an initrd, and joins.
fn module_key(log: &Path) -> Result<()> {
    let mut cluster = Cluster::with_key_module(1, "selftest=join selftest_s=1", None, log)?;
    cluster.ends(&SUCCESS, LIMIT)?;
    cluster
        .manager
        .wait_for_line("left", LIMIT)
        .context("the manager does not say that the node left")
        .map(|_| ())
}

fn module_without_key(log: &Path) -> Result<()> {
    let module = tempfile::NamedTempFile::new()?;
    std::fs::write(module.path(), "some other initrd\n")?;
    let cluster = Cluster::with_key_module(1, "", Some(module.path()), log)?;
    cluster.ends(&REFUSED, LIMIT)?;
    says(&cluster, "no boot module is a cluster key")
}

/// Checks that a node with key and settings in an initrd joins, that the command line overrides the initrd,
/// and that the console names the source of each value.
fn configuration(log: &Path) -> Result<()> {
    let options = "selftest=join selftest_s=1 BOOT_IMAGE=/ferrolite log=info";
    let mut cluster = Cluster::with_initrd(1, options, "# a node\nnode=other\nlog=debug\nid=keep\n", log)?;
    cluster.ends(&SUCCESS, LIMIT)?;
    let joined = cluster.manager.wait_for_line("left", LIMIT).context("the node does not leave")?;
    ensure!(joined.contains("node0"), "the manager says `{joined}`");
    for what in [
        "settings by command line: manager=10.0.2.2:",
        "settings by initrd: id=keep",
        "settings by initrd, overridden: node=other log=debug",
        "command line: `BOOT_IMAGE=/ferrolite` of a loader is ignored",
        "cluster key by initrd",
    ] {
        wait_for_console(0, what, log)?;
    }
    Ok(())
}

fn bad_configuration(log: &Path) -> Result<()> {
    let cluster = Cluster::with_initrd(1, "", "manger=10.0.2.2:1\n", log)?;
    cluster.ends(&REFUSED, LIMIT)?;
    says(&cluster, "initrd: unknown key `manger` in `manger=10.0.2.2:1`")
}

/// Returns the command that counts the words of an input on all nodes of a cluster.
pub(super) fn count_words(cluster: &Cluster, input: &Path, output: &Path) -> Command {
    let mut submit = cluster.manager.client("submit");
    submit.args(["--app", "wordcount", "--input"]).arg(input).arg("--output").arg(output);
    submit
}

/// Checks a job on four nodes, each of which has three peers and permits for two.
fn lite_peers(log: &Path) -> Result<()> {
    let cluster = Cluster::start(4, "lite.peers=2 log=debug", None, log)?;
    cluster.joined(log)?;
    let Prepared { input, expected } = Input::SmallText.prepared(log)?;
    let dir = tempfile::tempdir()?;
    let output = dir.path().join("out");
    tool::run_ok(&mut count_words(&cluster, &input, &output), log, LIMIT)?;
    compare(&expected, &output, log)?;
    for n in 0..4 {
        wait_for_console(n, "all 2 connection permits are in use", log)?;
    }
    Ok(())
}

/// Suspends the manager for ever. The node leaves the cluster once its lease and the time of the
/// setting have passed.
fn lite_silence(log: &Path) -> Result<()> {
    let cluster = Cluster::start(1, "lite.silence=1s", None, log)?;
    cluster.joined(log)?;
    let manager = process(&cluster)?;
    kill_process(manager, Signal::STOP)?;
    let ended = cluster.ends(&REFUSED, LIMIT);
    kill_process(manager, Signal::CONT)?;
    ended?;
    says(&cluster, "the manager has been silent for 1s")
}

/// Returns the manager's process.
pub(super) fn process(cluster: &Cluster) -> Result<Pid> {
    i32::try_from(cluster.manager.process()).ok().and_then(Pid::from_raw).context("no process")
}

/// Stops the manager during a job, for longer than the lease of its nodes. The nodes must wait for it.
fn stopped_manager(log: &Path) -> Result<()> {
    let cluster = Cluster::start(2, "", None, log)?;
    cluster.joined(log)?;
    let Prepared { input, expected } = Input::SmallText.prepared(log)?;
    let dir = tempfile::tempdir()?;
    let (output, said) = (dir.path().join("out"), log.with_extension("submit.log"));
    let file = File::create(&said)?;
    let mut submit = count_words(&cluster, &input, &output);
    submit.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut job = qemu::die_with_this_thread(&mut submit).spawn()?;
    wait_for("job 1 ", &said, &mut job)?;
    let manager = process(&cluster)?;
    kill_process(manager, Signal::STOP)?;
    ensure!(job.try_wait()?.is_none(), "the job ended before the manager was stopped");
    let suspended = (0..2).try_for_each(|n| wait_for_console(n, "posts nothing until it answers", log));
    kill_process(manager, Signal::CONT)?;
    suspended?;
    let status = tool::wait(&mut job, LIMIT)?.context("the job does not end")?;
    ensure!(status.success(), "the job failed: {}", std::fs::read_to_string(&said)?.trim());
    compare(&expected, &output, log)?;
    (0..2).try_for_each(|n| wait_for_console(n, "goes on after", log))
}

/// Stops the manager for some time while the nodes are idle. All nodes must stay members, and work.
fn stands_still(pause: Duration, log: &Path) -> Result<()> {
    let cluster = Cluster::start(2, "", None, log)?;
    cluster.joined(log)?;
    let Prepared { input, expected } = Input::SmallText.prepared(log)?;
    let manager = process(&cluster)?;
    kill_process(manager, Signal::STOP)?;
    std::thread::sleep(pause);
    kill_process(manager, Signal::CONT)?;
    let dir = tempfile::tempdir()?;
    let output = dir.path().join("out");
    let mut submit = count_words(&cluster, &input, &output);
    tool::run_ok(submit.args(["--nodes", "2"]), log, LIMIT)?;
    compare(&expected, &output, log)?;
    // A node that had lost its membership would have ended, or joined again.
    for n in 0..2 {
        let console = std::fs::read(log.with_extension(format!("node{n}.log")))?;
        let joins = String::from_utf8_lossy(&console).matches("joined as ").count();
        ensure!(joins == 1, "node{n} has joined {joins} times");
    }
    tool::run_ok(&mut cluster.manager.client("shutdown"), log, LIMIT)?;
    cluster.ends(&SUCCESS, LIMIT)?;
    cluster.ends(&SUCCESS, LIMIT)
}

/// Waits until the console of a machine contains a text.
pub(super) fn wait_for_console(machine: usize, what: &str, log: &Path) -> Result<()> {
    let console = log.with_extension(format!("node{machine}.log"));
    let deadline = Instant::now() + LIMIT;
    while !String::from_utf8_lossy(&std::fs::read(&console)?).contains(what) {
        ensure!(Instant::now() < deadline, "node{machine} does not say `{what}`");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn says(cluster: &Cluster, what: &str) -> Result<()> {
    let tail = cluster.vms.first().map(Vm::tail).unwrap_or_default();
    let found = tail.iter().any(|line| line.contains(what));
    ensure!(found, "the node does not say `{what}`, but at the end: {tail:#?}");
    Ok(())
}

/// Runs a command of the manager, which must fail with one line that contains `what`.
pub(super) fn fails(command: &mut Command, what: &str, log: &Path) -> Result<()> {
    let done = tool::run(command, log, LIMIT)?;
    ensure!(!done.status.success(), "it succeeded");
    let lines: Vec<_> = done.output.lines().collect();
    ensure!(lines.len() == 1, "it says {} lines", lines.len());
    ensure!(done.output.contains(what), "it says `{}`, which lacks `{what}`", done.output.trim());
    Ok(())
}

fn wrong_key_client(log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let manager = Manager::start(&manager::build(Profile::Dev)?, 0, dir.path())?;
    let other = dir.path().join("other.key");
    let mut make = Command::new(manager::build(Profile::Dev)?);
    tool::run_ok(make.args(["key", "--key-file"]).arg(&other), log, LIMIT)?;
    let mut nodes = Command::new(manager::build(Profile::Dev)?);
    nodes.args(["nodes", "--manager", &format!("127.0.0.1:{}", manager.port()?), "--key-file"]).arg(other);
    fails(&mut nodes, "key", log)
}

fn absent_manager_client(log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let key = dir.path().join("cluster.key");
    let mut make = Command::new(manager::build(Profile::Dev)?);
    tool::run_ok(make.args(["key", "--key-file"]).arg(&key), log, LIMIT)?;
    let mut nodes = Command::new(manager::build(Profile::Dev)?);
    fails(nodes.args(["nodes", "--manager", "127.0.0.1:1", "--key-file"]).arg(key), "127.0.0.1:1", log)
}

fn busy_port(log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let holder = TcpListener::bind("127.0.0.1:0")?;
    let taken = holder.local_addr()?.to_string();
    let mut make = Command::new(manager::build(Profile::Dev)?);
    tool::run_ok(make.args(["key", "--key-file"]).arg(dir.path().join("cluster.key")), log, LIMIT)?;
    let mut daemon = Command::new(manager::build(Profile::Dev)?);
    fails(daemon.args(["daemon", "--listen", &taken, "--state"]).arg(dir.path()), &taken, log)
}
