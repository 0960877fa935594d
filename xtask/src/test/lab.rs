//! What the tests that boot machines share: the programs under test, built once, and clusters made by hand.

use crate::cx3;
use crate::run::{self, Manager, RdmaNic, manager};
use crate::{image, setup, tool, ui};
use anyhow::{Result, anyhow, bail, ensure};
use qemu::Qemu;
use qemu::cx3::{Cx3, Cx3Config};
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
    // Goes after those whose cards it serves.
    _cards: Option<Cx3>,
    _dir: TempDir,
}

/// What the machines of a cluster are.
struct Wanted<'a> {
    /// The RDMA device of each.
    nics: &'a [RdmaNic],
    /// Ports of the fabric for others, behind those of the machines.
    hosts: u16,
    /// On the machines' command lines.
    options: &'a str,
    /// What they get instead of the manager's key.
    key: Option<&'a Path>,
    /// Options of the manager.
    manager: &'a [&'a str],
}

impl Cluster {
    /// Starts `count` machines with `options` on their command lines. `key`: they get this file and not the manager's.
    pub fn start(count: u16, options: &str, key: Option<&Path>, log: &Path) -> Result<Self> {
        let nics = vec![RdmaNic::SoftRoce; count.into()];
        Self::make(&Wanted { nics: &nics, hosts: 0, options, key, manager: &[] }, log)
    }

    /// A machine for each RDMA device, and ports of the fabric for `hosts` others behind those of the machines. The manager
    /// gets the options `manager`.
    pub fn beside_hosts(nics: &[RdmaNic], hosts: u16, manager: &[&str], log: &Path) -> Result<Self> {
        Self::make(&Wanted { nics, hosts, options: "", key: None, manager }, log)
    }

    fn make(wanted: &Wanted, log: &Path) -> Result<Self> {
        let lab = Lab::get()?;
        let &Wanted { nics, hosts, options, key, manager: more } = wanted;
        let (count, cards) = (u16::try_from(nics.len())?, nics.iter().any(|nic| *nic != RdmaNic::SoftRoce));
        let tools = cards.then(cx3::Tools::get).transpose()?.transpose().map_err(|why| anyhow!("{why}"))?;
        let qemu = tools.map_or(&lab.qemu, |tools| &tools.qemu);
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
        let cards = tools.map(|tools| {
            let cards = (0..).zip(nics).filter(|(_, nic)| nic.profile().is_some());
            let config = Cx3Config {
                cards: cards.map(|(port, nic)| run::card_of(nic, &fabric, port)).collect(),
                log_level: "warn".into(),
                ..Cx3Config::new(dir.path().to_owned(), 0, log.with_extension("cx3.log"))
            };
            Cx3::start(&tools.program, &config)
        });
        let cards = cards.transpose()?;
        let mut sockets = cards.iter().flat_map(Cx3::sockets);
        let (sender, events) = channel();
        let mut vms = Vec::new();
        for (index, nic) in (0..count).zip(nics) {
            let name = format!("node{index}");
            let rdma = match nic.profile().and_then(|_| sockets.next()) {
                Some(socket) => Nic::Card { socket: socket.to_owned() },
                None => Nic::Fabric { plug: fabric.plug(index.into()) },
            };
            let key = key.unwrap_or(manager.key()).to_owned();
            let spec = VmSpec {
                cmdline: format!(
                    "manager=10.0.2.2:{} node={name} nic={} {options}",
                    manager.port()?,
                    nic.driver()
                ),
                index,
                machine: Machine::Microvm,
                accel: lab.accel,
                cpus: 1,
                memory_mb: 64,
                kernel: lab.kernel.clone(),
                fw_cfg: vec![FwCfg { name: "opt/ferrolite/key".into(), file: key }],
                nics: vec![Nic::Management, rdma],
                name,
            };
            let console = log.with_extension(format!("{}.log", spec.name));
            vms.push(Vm::start(qemu, spec, Some(&console), sender.clone())?);
        }
        drop(sockets);
        Ok(Self { manager, vms, fabric, events, _cards: cards, _dir: dir })
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
