//! Machines and a manager without a job: joining, refusals, last words, idling.

use super::boot::{PANIC, REFUSED};
use super::cases::{Case, Outcome};
use super::lab::Cluster;
use crate::cargo::Profile;
use crate::run::{Manager, SUCCESS, manager};
use crate::tool;
use anyhow::{Context, Result, ensure};
use qemu::vm::Vm;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest wait for anything, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(120);
/// How long an idle cluster is watched.
const IDLE: Duration = Duration::from_secs(10);
/// After the join, before the watching: what the boot has left to do.
const SETTLE: Duration = Duration::from_secs(2);
/// The share of a host processor that an idle node may use.
const IDLE_SHARE: f64 = 0.05;

pub fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        Case::new(format!("cluster::{name}"), move |log| check(log).map(|()| Outcome::Passed))
    };
    vec![
        case("join-and-leave", leave),
        case("shutdown-ends-the-nodes-well", shutdown),
        case("panic-reaches-the-manager", panic),
        case("idle-uses-little", idle),
        case("wrong-key-node", wrong_key_node),
        case("wrong-key-client", wrong_key_client),
        case("absent-manager-node", absent_manager_node),
        case("unknown-nic-node", |log| {
            refused_option("nic=cx9", "nic=cx9: want auto, softroce, mlx4 or mlx4:PCI-ADDRESS/PORT", log)
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
        case("absent-manager-client", absent_manager_client),
        case("busy-port-daemon", busy_port),
    ]
}

fn leave(log: &Path) -> Result<()> {
    let mut cluster = Cluster::start(2, "selftest=join selftest_s=2", None, log)?;
    for _ in 0..2 {
        cluster.ends(&SUCCESS, LIMIT)?;
        cluster.manager.hears("left", LIMIT).context("the manager does not say that the node left")?;
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

/// A node that panics ends with the status for that, and the manager knows the reason.
fn panic(log: &Path) -> Result<()> {
    let mut cluster = Cluster::start(1, "selftest=join selftest_s=100 app=panic", None, log)?;
    cluster.ends(&PANIC, LIMIT)?;
    let said = cluster.manager.hears("died", LIMIT).context("the manager does not say that the node died")?;
    for part in ["node0", "asked for by app=panic"] {
        ensure!(said.contains(part), "the manager says `{said}`, which lacks `{part}`");
    }
    Ok(())
}

/// Judged by the processor time that the machines are charged, which a busy host does not change.
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

fn wrong_key_node(log: &Path) -> Result<()> {
    let key = tempfile::NamedTempFile::new()?;
    std::fs::write(key.path(), format!("{}\n", "5a".repeat(32)))?;
    let cluster = Cluster::start(1, "", Some(key.path()), log)?;
    cluster.ends(&REFUSED, LIMIT)?;
    says(&cluster, "wrong cluster key")
}

fn absent_manager_node(log: &Path) -> Result<()> {
    // The last one counts; nobody listens on port 1.
    let cluster = Cluster::start(1, "manager=10.0.2.2:1", None, log)?;
    cluster.ends(&REFUSED, LIMIT)?;
    says(&cluster, "no manager at 10.0.2.2:1")
}

fn refused_option(options: &str, why: &str, log: &Path) -> Result<()> {
    let cluster = Cluster::start(1, options, None, log)?;
    cluster.ends(&REFUSED, LIMIT)?;
    says(&cluster, why)
}

fn says(cluster: &Cluster, what: &str) -> Result<()> {
    let tail = cluster.vms.first().map(Vm::tail).unwrap_or_default();
    ensure!(tail.iter().any(|line| line.contains(what)), "the node does not say `{what}`");
    Ok(())
}

/// Runs a command of the manager that must fail with one line that contains `what`.
fn fails(command: &mut Command, what: &str, log: &Path) -> Result<()> {
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
