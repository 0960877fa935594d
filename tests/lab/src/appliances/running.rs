//! The appliances of a run: started together, watched, ended together.

use super::{Plan, RdmaNic, SUCCESS, SubnetManager, reason};
use crate::manager::{Manager, Process};
use crate::{interrupt, ui};
use anyhow::{Context, Result, bail};
use fabric::{Fabric, FabricConfig, FabricCounters};
use qemu::cx3::{CardConfig, Cx3, Cx3Config};
use qemu::vm::{Accel, Event, EventKind, Exit, FwCfg, Nic, Vm, VmSpec};
use qemu::{Qemu, Uplink};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The interval at which the job, the manager and interrupts are checked.
const TICK: Duration = Duration::from_millis(20);
/// The time after a failure of the job in which the end of a node is awaited, so that the error can name the
/// node.
const GRACE: Duration = Duration::from_millis(500);

/// The programs, the plan and the directories of appliances that start together.
pub struct Appliances<'a> {
    /// The QEMU of all machines.
    pub qemu: &'a Qemu,
    /// The program that serves cards, if an appliance has one.
    pub cx3: Option<&'a Path>,
    /// The image that the appliances boot.
    pub kernel: &'a Path,
    /// The accelerator of the appliances.
    pub accel: Accel,
    /// The memory of each appliance in MiB.
    pub memory_mb: u32,
    /// The number and the properties of the appliances.
    pub plan: &'a Plan,
    /// The directory for consoles and logs.
    pub consoles: Option<&'a Path>,
    /// The directory for sockets. Its path is short.
    pub work: &'a Path,
}

/// Running appliances. Killed when dropped.
pub struct Running {
    vms: Vec<Vm>,
    events: Receiver<Event>,
    subnet: Option<SubnetManager>,
    // Declared after the machines, because it must be dropped after those that use its cards.
    cards: Option<Cx3>,
    uplink: Option<Uplink>,
    fabric: Fabric,
    /// The ports of the fabric for programs of this host.
    free: Range<usize>,
    _visitors: Option<Link>,
}

/// A symbolic link that is removed when dropped.
struct Link(PathBuf);

impl Link {
    fn new(to: &Path, path: &Path) -> Result<Self> {
        std::os::unix::fs::symlink(to, path)
            .with_context(|| format!("cannot make the fabric's socket {}", path.display()))?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Another process may have removed the link.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Appliances<'_> {
    /// Starts the fabric and the appliances, which connect to the manager.
    pub fn start(&self, manager: &Manager) -> Result<Running> {
        let plan = self.plan;
        let fabric = Fabric::start(&FabricConfig {
            ports: usize::from(plan.nodes)
                + usize::from(plan.fabric_socket.is_some())
                + usize::from(plan.one_nic)
                + usize::from(plan.free_ports),
            dir: self.work.to_owned(),
            faults: plan.faults,
            seed: plan.seed,
            pcap: plan.pcap.clone().filter(|_| !plan.has_infiniband()),
        })?;
        let visitors = plan.fabric_socket.as_deref();
        let visitors = visitors.map(|path| Link::new(fabric.socket(plan.nodes.into()), path)).transpose()?;
        let uplink = usize::from(plan.nodes) + usize::from(visitors.is_some());
        let uplink = plan.one_nic.then(|| Uplink::start(self.qemu, fabric.socket(uplink))).transpose()?;
        let cards = self.cx3.map(|program| self.serve_cards(program, &fabric)).transpose()?;
        let subnet = match &cards {
            Some(cards) if plan.has_infiniband() => {
                let start = || self.start_subnet(cards);
                Some(ui::step("starting a subnet manager", start)?)
            }
            _ => None,
        };
        let first_free =
            usize::from(plan.nodes) + usize::from(visitors.is_some()) + usize::from(plan.one_nic);
        let free = first_free..first_free + usize::from(plan.free_ports);
        let (sender, events) = channel();
        let port = manager.port()?;
        let mut vms = Vec::new();
        for index in 0..plan.nodes {
            let name = format!("node{index}");
            let card = plan.cards().position(|(appliance, _)| appliance == index);
            let rdma = match (&cards, card) {
                (Some(cards), Some(card)) => Nic::Card { socket: cards.socket(card).to_owned() },
                _ => Nic::Fabric { plug: fabric.plug(index.into()) },
            };
            let spec = VmSpec {
                cmdline: format!(
                    "manager=10.0.2.2:{port} node={name} nic={} remote={} retry=off{}",
                    plan.nic(index).driver(),
                    plan.remote,
                    plan.lite_words()
                ),
                index,
                machine: plan.machine,
                accel: self.accel,
                cpus: plan.cpus,
                memory_mb: self.memory_mb,
                kernel: self.kernel.to_owned(),
                fw_cfg: vec![FwCfg { name: "opt/ferrolite/key".into(), file: manager.key().to_owned() }],
                initrd: None,
                nics: if plan.one_nic { vec![rdma] } else { vec![Nic::Management, rdma] },
                boots_again: false,
                name,
            };
            let console = self.consoles.map(|dir| dir.join(format!("node{index}.log")));
            vms.push(Vm::start(self.qemu, spec, console.as_deref(), sender.clone())?);
        }
        Ok(Running { vms, events, subnet, cards, uplink, fabric, free, _visitors: visitors })
    }

    fn serve_cards(&self, program: &Path, fabric: &Fabric) -> Result<Cx3> {
        let plan = self.plan;
        let log = self.consoles.unwrap_or(self.work).join("cx3.log");
        let mut config =
            Cx3Config { log_level: "warn".into(), ..Cx3Config::new(self.work.to_owned(), 0, log) };
        config.arguments.push("--counts".into());
        config.cards = plan.cards().map(|(index, _)| card_of(plan.nic(index), fabric, index)).collect();
        for ((index, _), card) in plan.cards().zip(&mut config.cards) {
            card.keys.extend(plan.card_keys(index));
        }
        if plan.has_infiniband() {
            config.cards.push(SubnetManager::card());
            (config.faults, config.seed) = (plan.faults, plan.seed);
            if let Some(path) = &plan.pcap {
                config.arguments.extend(["--capture".into(), path.to_string_lossy().into_owned()]);
            }
        }
        Cx3::start(program, &config)
    }

    fn start_subnet(&self, cards: &Cx3) -> Result<SubnetManager> {
        // The subnet manager's card is the last.
        let socket = cards.sockets().last().context("there is no card")?;
        SubnetManager::start(self.qemu, cards, socket, self.consoles)
    }
}

/// Returns the card of an appliance. An Ethernet cable leads to the appliance's port of the fabric, an
/// InfiniBand cable to the switch of `cx3`.
pub(crate) fn card_of(nic: &RdmaNic, fabric: &Fabric, port: u16) -> CardConfig {
    CardConfig {
        fabric: (!nic.is_infiniband()).then(|| fabric.socket(port.into()).to_owned()),
        ..CardConfig::profile(nic.profile().unwrap_or_default())
    }
}

impl Running {
    /// Waits until one of the manager's clients is done. It is a failure if an appliance ends before, or if
    /// the deadline passes.
    pub fn supervise(&mut self, mut client: Process, manager: &mut Manager, deadline: Instant) -> Result<()> {
        loop {
            match self.events.recv_timeout(TICK) {
                Ok(event) => self.check(event)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            match client.poll() {
                Ok(None) => {}
                Ok(Some(())) => return Ok(()),
                // The cause of most failures is the end of a node, which is then reported.
                Err(failure) => return self.blame().and(Err(failure)),
            }
            manager.check()?;
            if let Some(cards) = &mut self.cards
                && let Some(status) = cards.ended()?
            {
                bail!("cx3 ended with {status}: {}", cards.tail());
            }
            self.uplink.as_mut().map_or(Ok(()), Uplink::check)?;
            interrupt::check()?;
            if Instant::now() >= deadline {
                bail!("the run did not end within the time set by --timeout");
            }
        }
    }

    /// Returns a line for each appliance that has ended since the last call.
    pub fn ends(&self) -> Vec<String> {
        self.events.try_iter().filter_map(|event| Some(self.check(event).err()?.to_string())).collect()
    }

    /// Returns the sockets of the fabric's ports for programs of this host.
    pub fn free_sockets(&self) -> impl Iterator<Item = &Path> {
        self.free.clone().map(|port| self.fabric.socket(port))
    }

    /// Ends all appliances. Returns the fabric's counters.
    pub fn stop(self) -> Result<FabricCounters> {
        drop(self.vms);
        drop(self.uplink);
        self.subnet.map(SubnetManager::stop).transpose()?;
        self.cards.map(Cx3::stop).transpose()?;
        self.fabric.stop()
    }

    fn check(&self, event: Event) -> Result<()> {
        let node = event.index;
        match event.kind {
            EventKind::Line(_) => Ok(()),
            EventKind::RestartedUnderTcg => {
                eprintln!("  node{node} is silent under KVM: started again under TCG");
                Ok(())
            }
            EventKind::Exited(exit) => bail!("node{node} has ended: {exit}{}", self.last_words(node, &exit)),
        }
    }

    /// Returns an error if a node ends now.
    fn blame(&self) -> Result<()> {
        let until = Instant::now() + GRACE;
        while let Ok(event) = self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.check(event)?;
        }
        Ok(())
    }

    /// Returns the last line of a node's console that looks like the reason for its end.
    fn last_words(&self, node: u16, exit: &Exit) -> String {
        if !matches!(exit, Exit::Guest(_)) || *exit == SUCCESS {
            return String::new();
        }
        let tail = self.vms.get(usize::from(node)).map(Vm::tail).unwrap_or_default();
        reason(&tail).map(|line| format!(": {line}")).unwrap_or_default()
    }
}
