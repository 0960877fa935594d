//! Tests of perftest: the matrix of `cargo xtask perftest`, kernels that run nothing but perftest, and bad
//! command lines.

use super::boot::REFUSED;
use crate::job::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use fabric::{Fabric, FabricConfig};
use lab::appliances::SUCCESS;
use lab::cluster::{Lab, ended};
use lab::tool;
use netfault::Faults;
use qemu::vm::{EventKind, Machine, Nic, Vm, VmSpec};
use serde_json::Value;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// The longest time for anything on a busy host, and for the whole matrix.
const LIMIT: Duration = Duration::from_secs(600);
const FULL_LIMIT: Duration = Duration::from_secs(3 * 3600);
/// The longest time for a server to end after its client.
const AFTER: Duration = Duration::from_secs(60);

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        Case::new(format!("perftest::{name}"), move |log| check(log).map(|()| Outcome::Passed))
    };
    vec![
        case("between-kernels-alone", alone),
        case("exchange-outlasts-silence", slow),
        case("bad-command-lines", refused),
        case("quick", |log| matrix(&["--quick"], LIMIT, log)),
        case("full", |log| matrix(&[], FULL_LIMIT, log)).full_if(true),
    ]
}

/// Checks that all cells pass and that each has a figure.
fn matrix(options: &[&str], limit: Duration, log: &Path) -> Result<()> {
    let json = tempfile::NamedTempFile::new()?;
    let mut command = xtask();
    command.arg("perftest").args(options).arg("--json").arg(json.path());
    tool::run_ok(&mut command, log, limit)?;
    let whole: Value = serde_json::from_slice(&std::fs::read(json.path())?)?;
    let cells = whole.get("cells").and_then(Value::as_array).context("--json lacks cells")?;
    ensure!(cells.len() >= 78, "only {} cells", cells.len());
    for cell in cells {
        let figure =
            ["p50_us", "average_mib_s"].iter().any(|name| cell.get(name).is_some_and(Value::is_number));
        ensure!(figure && cell.get("error") == Some(&Value::Null), "{cell}");
    }
    Ok(())
}

/// Returns a machine that runs nothing but perftest.
fn machine(fabric: &Fabric, index: u16, cmdline: String) -> Result<VmSpec> {
    let lab = Lab::get()?;
    Ok(VmSpec {
        name: format!("node{index}"),
        index,
        machine: Machine::Microvm,
        accel: lab.accel,
        cpus: 1,
        memory_mb: 64,
        kernel: lab.kernel.clone(),
        cmdline,
        fw_cfg: Vec::new(),
        initrd: None,
        nics: vec![Nic::Fabric { plug: fabric.plug(index.into()) }],
        boots_again: false,
    })
}

fn fabric(dir: &Path, faults: Faults) -> Result<Fabric> {
    Fabric::start(&FabricConfig { ports: 2, dir: dir.to_owned(), faults, seed: 0, pcap: None })
}

/// Runs server and client without a manager, whose buffers must be equal at the end.
fn alone(log: &Path) -> Result<()> {
    let (server, client) = pair("ib_write_bw,-s,1000,-n,100,-b", Faults::default(), log)?;
    for (a, b) in [("near", "far"), ("far", "near")] {
        let (a, b) = (client.get(a), server.get(b));
        ensure!(a.is_some_and(Value::is_string) && a == b, "the buffers differ: {client} {server}");
    }
    Ok(())
}

/// Checks that the TCP exchange survives a test in which it is silent for 12 s: 24 READs of half a second,
/// which is the round-trip time of the fabric.
fn slow(log: &Path) -> Result<()> {
    let faults = Faults { delay_ns: 250_000_000, ..Faults::default() };
    let (server, client) = pair("ib_read_lat,-s,1000,-n,24", faults, log)?;
    let (read, sent) = (client.get("near"), server.get("far"));
    ensure!(read.is_some_and(Value::is_string) && read == sent, "the buffers differ: {client} {server}");
    Ok(())
}

/// Runs a server and its client with the options `words`. The client ends successfully, and the server
/// continues. Returns the results of both.
fn pair(words: &str, faults: Faults, log: &Path) -> Result<(Value, Value)> {
    let dir = tempfile::TempDir::with_prefix("ferrolite-")?;
    let fabric = fabric(dir.path(), faults)?;
    let (sender, events) = channel();
    let words = format!("perftest={words}");
    let lines = [format!("{words} fabric_ip=10.0.0.1/24"), format!("{words},10.0.0.1 fabric_ip=10.0.0.2/24")];
    let mut vms = Vec::new();
    for (index, line) in lines.into_iter().enumerate() {
        let spec = machine(&fabric, index as u16, line)?;
        let console = log.with_extension(format!("{}.log", spec.name));
        vms.push(Vm::start(&Lab::get()?.qemu, spec, Some(&console), sender.clone())?);
    }
    ended(&vms, &events, &SUCCESS, LIMIT)?;
    let said = |index: usize| vms.get(index).map(Vm::tail).unwrap_or_default();
    let deadline = Instant::now() + AFTER;
    let line = |index: usize, role: &str| -> Result<Value> {
        loop {
            let lines = said(index);
            if let Some(line) = lines.iter().rev().find(|line| line.starts_with('{') && line.contains(role)) {
                return Ok(serde_json::from_str(line)?);
            }
            ensure!(Instant::now() < deadline, "the {role} says no result");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let results = (line(0, "server")?, line(1, "client")?);
    let over = events.try_iter().any(|event| event.index == 0 && matches!(event.kind, EventKind::Exited(_)));
    ensure!(!over, "the server has ended too");
    Ok(results)
}

/// Checks that the machine prints one line and ends with the status of a refusal.
fn refused(log: &Path) -> Result<()> {
    for (line, why) in [
        ("perftest=ib_write_lat,-z fabric_ip=10.0.0.1/24", "option -z is not known here"),
        ("perftest=ib_write fabric_ip=10.0.0.1/24", "unknown program"),
        ("perftest=ib_write_lat", "needs fabric_ip"),
        ("perftest=ib_write_lat fabric_ip=10.0.0.1", "want ADDRESS/PREFIX"),
    ] {
        let dir = tempfile::TempDir::with_prefix("ferrolite-")?;
        let fabric = fabric(dir.path(), Faults::default())?;
        let (sender, events) = channel();
        let spec = machine(&fabric, 0, line.to_owned())?;
        let vm = Vm::start(&Lab::get()?.qemu, spec, Some(&log.with_extension("node0.log")), sender)?;
        let vms = [vm];
        ended(&vms, &events, &REFUSED, LIMIT).with_context(|| line.to_owned())?;
        let said = vms.first().map(Vm::tail).unwrap_or_default();
        ensure!(said.iter().any(|l| l.contains(why)), "`{line}`: the machine does not say `{why}`");
    }
    Ok(())
}
