//! What the tests that boot machines share: the programs under test, built once, and clusters made by hand.

use crate::run::{self, Manager, manager};
use crate::{image, setup, tool, ui};
use anyhow::{Result, anyhow, bail, ensure};
use qemu::Qemu;
use qemu::fabric::{Fabric, FabricConfig};
use qemu::vm::{Accel, Event, EventKind, Exit, FwCfg, Machine, Nic, Vm, VmSpec};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The programs under test.
pub struct Lab {
    pub qemu: Qemu,
    pub kernel: PathBuf,
    pub accel: Accel,
}

impl Lab {
    /// Made by the first test that needs it.
    pub fn get() -> Result<&'static Self> {
        static LAB: OnceLock<Result<Lab, String>> = OnceLock::new();
        let made = LAB.get_or_init(|| Self::make().map_err(|e| ui::one_line(&e)));
        made.as_ref().map_err(|e| anyhow!(e.clone()))
    }

    fn make() -> Result<Self> {
        let qemu = setup::qemu()?;
        let kernel = image::build()?.elf;
        let accel = run::decide(&qemu, Machine::Microvm, &kernel)?;
        Ok(Self { qemu, kernel, accel })
    }
}

/// A manager and machines on one fabric, without a job.
pub struct Cluster {
    pub manager: Manager,
    pub vms: Vec<Vm>,
    pub fabric: Fabric,
    events: Receiver<Event>,
    _dir: TempDir,
}

impl Cluster {
    /// Starts `count` machines with `options` on their command lines. `key`: they get this file and not the manager's.
    pub fn start(count: u16, options: &str, key: Option<&Path>, log: &Path) -> Result<Self> {
        Self::make(count, 0, options, key, &[], log)
    }

    /// As [`start`](Self::start), with ports of the fabric for `hosts` others behind those of the machines. The manager
    /// gets `more` options.
    pub fn beside_hosts(count: u16, hosts: u16, more: &[&str], log: &Path) -> Result<Self> {
        Self::make(count, hosts, "", None, more, log)
    }

    fn make(
        count: u16,
        hosts: u16,
        options: &str,
        key: Option<&Path>,
        more: &[&str],
        log: &Path,
    ) -> Result<Self> {
        let lab = Lab::get()?;
        // Short, because of the sockets in it.
        let dir = TempDir::with_prefix("ferrolite-")?;
        let manager = Manager::start_with(&manager::build()?, 0, dir.path(), more)?;
        let fabric = Fabric::start(&FabricConfig {
            ports: (count + hosts).into(),
            dir: dir.path().to_owned(),
            faults: netfault::Faults::default(),
            seed: 0,
            pcap: None,
        })?;
        let (sender, events) = channel();
        let mut vms = Vec::new();
        for index in 0..count {
            let name = format!("node{index}");
            let key = key.unwrap_or(manager.key()).to_owned();
            let spec = VmSpec {
                cmdline: format!("manager=10.0.2.2:{} node={name} {options}", manager.port()?),
                index,
                machine: Machine::Microvm,
                accel: lab.accel,
                cpus: 1,
                memory_mb: 64,
                kernel: lab.kernel.clone(),
                fw_cfg: vec![FwCfg { name: "opt/ferrolite/key".into(), file: key }],
                nics: vec![Nic::Management, Nic::Fabric { plug: fabric.plug(index.into()) }],
                name,
            };
            let console = log.with_extension(format!("{}.log", spec.name));
            vms.push(Vm::start(&lab.qemu, spec, Some(&console), sender.clone())?);
        }
        Ok(Self { manager, vms, fabric, events, _dir: dir })
    }

    /// Waits until all machines are members.
    pub fn joined(&self, log: &Path) -> Result<()> {
        let mut nodes = self.manager.client("nodes");
        nodes.args(["--wait", &self.vms.len().to_string(), "--timeout", "120"]);
        tool::run_ok(&mut nodes, log, Duration::from_secs(150)).map(|_| ())
    }

    /// Waits until a machine ends; an error says what it last said unless it ends as expected.
    pub fn ends(&self, expect: &Exit, limit: Duration) -> Result<()> {
        ended(&self.vms, &self.events, expect, limit)
    }
}

/// Waits for the end of the first of some machines that ends.
pub fn ended(vms: &[Vm], events: &Receiver<Event>, expect: &Exit, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Event { kind: EventKind::Exited(exit), index, .. }) => {
                let tail = vms.get(usize::from(index)).map(Vm::tail).unwrap_or_default();
                ensure!(exit == *expect, "{exit}: {}", run::reason(&tail).unwrap_or("it said nothing"));
                return Ok(());
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => bail!("did not end within {} s", limit.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("the machine is gone"),
        }
    }
}
