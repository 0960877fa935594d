//! The common part of tests that boot machines: the programs under test, built once, and clusters without
//! `cargo xtask run`.

use crate::appliances::{self, RdmaNic};
use crate::cargo::Profile;
use crate::manager::{self, Manager};
use crate::{cx3, image, setup, tool, ui};
use anyhow::{Context, Result, anyhow, bail, ensure};
use fabric::{Fabric, FabricConfig, Plug};
use qemu::cx3::{CardConfig, Cx3, Cx3Config};
use qemu::vm::{Accel, Event, EventKind, Exit, FwCfg, Machine, Nic, Vm, VmSpec};
use qemu::{Qemu, Uplink};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use tempfile::TempDir;

/// The programs under test.
pub struct Lab {
    /// The machine's QEMU.
    pub qemu: Qemu,
    /// The shipped image.
    pub kernel: PathBuf,
    /// The accelerator of the appliances.
    pub accel: Accel,
}

impl Lab {
    /// Returns the programs, which the first caller builds.
    pub fn get() -> Result<&'static Self> {
        static LAB: OnceLock<Result<Lab, String>> = OnceLock::new();
        let made = LAB.get_or_init(|| Self::make().map_err(|e| ui::one_line(&e)));
        made.as_ref().map_err(|e| anyhow!(e.clone()))
    }

    fn make() -> Result<Self> {
        let qemu = setup::qemu()?;
        let kernel = image::build()?.elf;
        let accel = appliances::decide(&qemu, Machine::Microvm, &kernel)?;
        Ok(Self { qemu, kernel, accel })
    }

    /// Returns the kernel for a command line: the shipped one, unless a self-test is requested.
    pub fn kernel_for(&self, cmdline: &str) -> Result<PathBuf> {
        let is_test = cmdline.split_ascii_whitespace().any(|word| word.starts_with("selftest="));
        if is_test { Ok(image::build_for_tests()?.elf) } else { Ok(self.kernel.clone()) }
    }
}

/// A manager and machines on one fabric, without a job.
pub struct Cluster {
    /// The manager's daemon.
    pub manager: Manager,
    /// The appliances that have been started.
    pub vms: Vec<Vm>,
    fabric: Fabric,
    events: Receiver<Event>,
    /// The RDMA devices of the machines and of hosts beside them.
    nics: Vec<RdmaNic>,
    /// The QEMU for machines with cards.
    qemu: Qemu,
    /// The memory of each machine in MiB.
    memory_mb: u32,
    /// True if machines get the key as a boot module, false if by fw_cfg.
    module_key: bool,
    /// True if the machines have one device, on the fabric, and command lines without a manager.
    one_network: bool,
    /// The image of machines that boot again after a reset.
    booting_again: Option<PathBuf>,
    // Declared after the machines, because they must be dropped after those that use them.
    cards: Option<Cx3>,
    second: Option<SecondNetwork>,
    dir: TempDir,
}

/// Properties of a cluster's cards.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cards<'a> {
    /// An option of the first card for `cx3`, in addition to its profile: `key=value`.
    pub first: Option<&'a str>,
    /// A further card for each machine, connected to the switch of `cx3`.
    pub spare: Option<&'a RdmaNic>,
    /// The file for a capture of the fabric, complete once the cluster is dropped.
    pub pcap: Option<&'a Path>,
    /// True if the machines have no other network device than a card with two ports, of which the second
    /// leads to the manager.
    pub manage_by_second: bool,
    /// True if the network of the second ports is of IPv6 alone, where fec0::2 is the host's ::1.
    pub is_ipv6: bool,
}

/// The network of cards' second ports, on which the manager is.
struct SecondNetwork {
    _uplink: Uplink,
    fabric: Fabric,
}

impl SecondNetwork {
    /// Starts a network for `cards` cards. `dir` is a directory for its sockets.
    fn start(cards: usize, qemu: &Qemu, dir: PathBuf, is_ipv6: bool) -> Result<Self> {
        std::fs::create_dir(&dir)?;
        let faults = netfault::Faults::default();
        let fabric = Fabric::start(&FabricConfig { ports: cards + 1, dir, faults, seed: 0, pcap: None })?;
        let uplink = if is_ipv6 { Uplink::ipv6 } else { Uplink::start };
        Ok(Self { _uplink: uplink(qemu, fabric.socket(cards))?, fabric })
    }

    /// Returns the configuration of a machine's card with its second port on the network.
    fn card(&self, card: CardConfig, nic: &RdmaNic, number: usize) -> CardConfig {
        let profile = match nic {
            RdmaNic::VpiInfiniBand => "vpi-2port",
            usual if *usual == RdmaNic::USUAL => "pro-2port",
            // The card of a host beside the machines.
            _ => return card,
        };
        let socket = self.fabric.socket(number).display();
        CardConfig { keys: vec![format!("profile={profile}"), format!("fabric2={socket}")], ..card }
    }
}

impl Cluster {
    /// Starts `count` machines with `options` on their command lines. If `key` is given, they get that file
    /// instead of the manager's key.
    pub fn start(count: u16, options: &str, key: Option<&Path>, log: &Path) -> Result<Self> {
        let nics = vec![RdmaNic::SoftRoce; count.into()];
        let mut cluster = Self::without_machines(nics, &[], log)?;
        cluster.boot(count, options, key, log)?;
        Ok(cluster)
    }

    /// Starts `count` machines with `memory_mb` MiB each.
    pub fn with_memory(count: u16, memory_mb: u32, log: &Path) -> Result<Self> {
        let nics = vec![RdmaNic::SoftRoce; count.into()];
        let mut cluster = Self { memory_mb, ..Self::without_machines(nics, &[], log)? };
        cluster.boot(count, "", None, log)?;
        Ok(cluster)
    }

    /// Starts `count` machines with an image of their own, which boot it again after a reset.
    pub fn booting_again(count: u16, image: &Path, log: &Path) -> Result<Self> {
        let nics = vec![RdmaNic::SoftRoce; count.into()];
        let booting_again = Some(image.to_owned());
        let mut cluster = Self { booting_again, ..Self::without_machines(nics, &[], log)? };
        cluster.boot(count, "", None, log)?;
        Ok(cluster)
    }

    /// Prepares a cluster whose manager is `program`, with options of its own, for `count` machines that
    /// [boot an image again](Self::booting_again), and for `hosts` processes beside them.
    pub fn under(
        program: &Path,
        options: &[&str],
        (count, hosts): (u16, u16),
        image: &Path,
        log: &Path,
    ) -> Result<Self> {
        let nics = vec![RdmaNic::SoftRoce; usize::from(count) + usize::from(hosts)];
        let booting_again = Some(image.to_owned());
        Ok(Self { booting_again, ..Self::prepare_under(program, nics, Cards::default(), options, log)? })
    }

    /// Starts machines as [`start`](Self::start) does, with the key in a boot module.
    pub fn with_key_module(count: u16, options: &str, key: Option<&Path>, log: &Path) -> Result<Self> {
        let nics = vec![RdmaNic::SoftRoce; count.into()];
        let mut cluster = Self { module_key: true, ..Self::without_machines(nics, &[], log)? };
        cluster.boot(count, options, key, log)?;
        Ok(cluster)
    }

    /// Starts machines as [`start`](Self::start) does, with the manager's key and `config` in an initrd.
    pub fn with_initrd(count: u16, options: &str, config: &str, log: &Path) -> Result<Self> {
        let nics = vec![RdmaNic::SoftRoce; count.into()];
        let mut cluster = Self { module_key: true, ..Self::without_machines(nics, &[], log)? };
        let key = std::fs::read(cluster.manager.key())?;
        let files = [("ferrolite/config", config.as_bytes()), ("ferrolite/key", &key)];
        let initrd = cluster.dir.path().join("initrd");
        std::fs::write(&initrd, bootconfig::archive(&files))?;
        cluster.boot(count, options, Some(&initrd), log)?;
        Ok(cluster)
    }

    /// Starts `count` machines whose only devices are on the first ports of the fabric. Two more ports are
    /// free. No manager is on the command line unless `options` names one.
    pub fn on_one_network(count: u16, options: &str, log: &Path) -> Result<Self> {
        let nics = vec![RdmaNic::SoftRoce; usize::from(count) + 2];
        let mut cluster = Self { one_network: true, ..Self::without_machines(nics, &[], log)? };
        cluster.boot(count, options, None, log)?;
        Ok(cluster)
    }

    /// Returns the fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Prepares a cluster for machines with these RDMA devices, and for hosts beside them;
    /// [`boot`](Self::boot) starts machines. The manager gets the options `manager`.
    pub(crate) fn without_machines(nics: Vec<RdmaNic>, manager: &[&str], log: &Path) -> Result<Self> {
        Self::prepare(nics, Cards::default(), manager, log)
    }

    /// Starts a machine for each RDMA device, as [`start`](Self::start) does.
    pub fn on_cards(nics: Vec<RdmaNic>, special: Cards<'_>, options: &str, log: &Path) -> Result<Self> {
        let count = u16::try_from(nics.len())?;
        let mut cluster = Self::prepare(nics, special, &[], log)?;
        cluster.boot(count, options, None, log)?;
        Ok(cluster)
    }

    /// Prepares a cluster as [`without_machines`](Self::without_machines) does, with properties of its cards.
    pub(crate) fn prepare(
        nics: Vec<RdmaNic>,
        special: Cards<'_>,
        manager: &[&str],
        log: &Path,
    ) -> Result<Self> {
        Self::prepare_under(&manager::build(Profile::Dev)?, nics, special, manager, log)
    }

    fn prepare_under(
        program: &Path,
        nics: Vec<RdmaNic>,
        special: Cards<'_>,
        manager: &[&str],
        log: &Path,
    ) -> Result<Self> {
        let lab = Lab::get()?;
        let has_cards = nics.iter().any(|nic| nic.profile().is_some());
        let tools = has_cards.then(cx3::Tools::get).transpose()?;
        let tools = tools.transpose().map_err(|why| anyhow!("{why}"))?;
        // The path is short because of the sockets in the directory.
        let dir = TempDir::with_prefix("ferrolite-")?;
        let manager = Manager::start_with(program, 0, dir.path(), manager)?;
        let fabric = Fabric::start(&FabricConfig {
            ports: nics.len(),
            dir: dir.path().to_owned(),
            faults: netfault::Faults::default(),
            seed: 0,
            pcap: special.pcap.map(Path::to_owned),
        })?;
        let qemu = tools.as_ref().map_or(&lab.qemu, |tools| &tools.qemu).clone();
        let of_second =
            || SecondNetwork::start(nics.len(), &qemu, dir.path().join("second"), special.is_ipv6);
        let second = special.manage_by_second.then(of_second).transpose()?;
        let cards = tools.as_ref().map(|tools| {
            let cards = (0..).zip(&nics).filter(|(_, nic)| nic.profile().is_some());
            let card = |(port, nic): (u16, &RdmaNic)| {
                let card = appliances::card_of(nic, &fabric, port);
                match &second {
                    Some(second) => second.card(card, nic, port.into()),
                    None => card,
                }
            };
            let mut cards: Vec<_> = cards.map(card).collect();
            if let (Some(card), Some(key)) = (cards.first_mut(), special.first) {
                card.keys.push(key.to_owned());
            }
            if let Some(profile) = special.spare.and_then(RdmaNic::profile) {
                cards.extend(nics.iter().map(|_| CardConfig::profile(profile)));
            }
            let config = Cx3Config {
                cards,
                log_level: "warn".into(),
                ..Cx3Config::new(dir.path().to_owned(), 0, log.with_extension("cx3.log"))
            };
            Cx3::start(&tools.program, &config)
        });
        let (_, events) = channel();
        Ok(Self {
            manager,
            vms: Vec::new(),
            fabric,
            events,
            nics,
            qemu,
            memory_mb: 64,
            module_key: false,
            one_network: false,
            booting_again: None,
            cards: cards.transpose()?,
            second,
            dir,
        })
    }

    /// Returns the QEMU for machines and hosts.
    pub fn qemu(&self) -> &Qemu {
        &self.qemu
    }

    /// Returns the RDMA device of the machine or host `place`: a card, or a port of the fabric.
    pub fn rdma(&self, place: usize) -> Nic {
        let is_card = |nic: &&RdmaNic| nic.profile().is_some();
        let before = self.nics.iter().take(place).filter(is_card).count();
        match (&self.cards, self.nics.get(place).filter(is_card)) {
            (Some(cards), Some(_)) => Nic::Card { socket: cards.socket(before).to_owned() },
            // QEMU 7.2 ends by a segmentation fault when a machine with a vhost-user device is reset.
            _ if self.booting_again.is_some() => {
                Nic::Fabric { plug: Plug::Stream(self.fabric.socket(place).to_owned()) }
            }
            _ => Nic::Fabric { plug: self.fabric.plug(place) },
        }
    }

    /// Returns the further card of the machine or host `place`.
    fn spare(&self, place: usize) -> Option<Nic> {
        let carded = self.nics.iter().filter(|nic| nic.profile().is_some()).count();
        let socket = self.cards.as_ref()?.sockets().nth(carded + place)?;
        Some(Nic::Card { socket: socket.to_owned() })
    }

    /// Starts the first `count` machines. `options` and `key` are as for [`start`](Self::start).
    pub fn boot(&mut self, count: u16, options: &str, key: Option<&Path>, log: &Path) -> Result<()> {
        let lab = Lab::get()?;
        let (sender, events) = channel();
        self.events = events;
        for (index, nic) in (0..count).zip(&self.nics) {
            let name = format!("node{index}");
            let key = key.unwrap_or(self.manager.key()).to_owned();
            let (manager, driver) = (self.manager.port()?, nic.driver());
            let manager =
                if self.one_network { String::new() } else { format!("manager=10.0.2.2:{manager} ") };
            let cmdline = format!("{manager}node={name} nic={driver} {options}");
            let spec = VmSpec {
                kernel: match &self.booting_again {
                    Some(image) => image.clone(),
                    None => lab.kernel_for(&cmdline)?,
                },
                boots_again: self.booting_again.is_some(),
                cmdline,
                index,
                // The firmware of a microvm does not always boot after a reset: it takes another way to boot
                // than at first, and halts.
                machine: if self.booting_again.is_some() { Machine::Q35 } else { Machine::Microvm },
                accel: lab.accel,
                cpus: 1,
                memory_mb: self.memory_mb,
                fw_cfg: (!self.module_key)
                    .then(|| FwCfg { name: "opt/ferrolite/key".into(), file: key.clone() })
                    .into_iter()
                    .collect(),
                initrd: self.module_key.then_some(key),
                nics: (!self.one_network && self.second.is_none())
                    .then_some(Nic::Management)
                    .into_iter()
                    .chain([self.rdma(index.into())])
                    .chain(self.spare(index.into()))
                    .collect(),
                name,
            };
            let console = log.with_extension(format!("{}.log", spec.name));
            self.vms.push(Vm::start(&self.qemu, spec, Some(&console), sender.clone())?);
        }
        Ok(())
    }

    /// Waits until all machines are members. An error names the machines that have ended.
    pub fn joined(&self, log: &Path) -> Result<()> {
        let mut nodes = self.manager.client("nodes");
        nodes.args(["--wait", &self.vms.len().to_string(), "--timeout", "120"]);
        let joined = tool::run_ok(&mut nodes, log, Duration::from_secs(150)).map(|_| ());
        joined.with_context(|| self.fates())
    }

    /// Returns a line that names the machines that have ended, with the way in which each has.
    pub fn fates(&self) -> String {
        let ended = self.events.try_iter().filter_map(|event| match event.kind {
            EventKind::Exited(exit) => Some(format!("machine {} has ended: {exit}", event.index)),
            _ => None,
        });
        let ended: Vec<_> = ended.collect();
        if ended.is_empty() { "all machines run".into() } else { ended.join("; ") }
    }

    /// Waits until a machine ends. If it does not end as expected, the error contains its last line.
    pub fn ends(&self, expect: &Exit, silence: Duration) -> Result<()> {
        ended(&self.vms, &self.events, expect, silence)
    }
}

/// Waits until the first of some machines ends. They may be silent for at most `silence`.
pub fn ended(vms: &[Vm], events: &Receiver<Event>, expect: &Exit, silence: Duration) -> Result<()> {
    loop {
        match events.recv_timeout(silence) {
            Ok(Event { kind: EventKind::Exited(exit), index, .. }) => {
                let tail = vms.get(usize::from(index)).map(Vm::tail).unwrap_or_default();
                ensure!(
                    exit == *expect,
                    "{exit}: {}",
                    appliances::reason(&tail).unwrap_or("it said nothing")
                );
                return Ok(());
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => bail!("silent for {} s", silence.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("the machine has ended"),
        }
    }
}
