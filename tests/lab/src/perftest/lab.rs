//! Two appliances, a manager and a Linux guest on one fabric, which run one cell after the other.

use super::cell::{Cell, Direction, Figure};
use super::judge::{self, Appliance};
use super::linux;
use super::plan::Plan;
use crate::appliances::{self, Programs};
use crate::manager::{Job, Manager, Process};
use crate::{interrupt, paths, tool, ui};
use anyhow::{Context, Result, bail, ensure};
use fabric::{Fabric, FabricConfig};
use netfault::Faults;
use qemu::cx3::Cx3;
use qemu::linux::{Guest, GuestConfig, Image, Network, perftest};
use qemu::vm::{Event, FwCfg, Machine, Nic, Vm, VmSpec};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The number of appliances.
const NODES: u16 = 2;
/// Memory of each appliance in MiB: room for two buffers of 8 MiB in one piece, and queues.
const MEMORY_MB: u32 = 96;
/// The guest's address, in the network in which the manager assigns the appliances' addresses.
const LINUX: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
/// The longest time for the appliances to join.
const JOIN: Duration = Duration::from_secs(120);
/// The longest time for a job that is not a cell.
const JOB: Duration = Duration::from_secs(300);
/// The most runs of a cell whose Linux client finds no clock rate.
const ATTEMPTS: u32 = 3;
/// The longest time for a cell's server to end after its client.
const AFTER: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(5);

/// The running machines.
pub struct Lab {
    manager: Manager,
    vms: Vec<Vm>,
    events: Receiver<Event>,
    guest: Option<Guest>,
    // Declared after the machines, because it must be dropped after those that use its cards.
    cards: Option<Cx3>,
    fabric: Fabric,
    /// Addresses of the appliances, by number.
    addresses: Vec<Ipv4Addr>,
    loss: f64,
    // The directory of sockets and files. Declared last, because it must be dropped after the fabric.
    dir: TempDir,
}

impl Lab {
    /// Boots all machines in parallel.
    pub fn boot(programs: Programs, plan: &Plan<'_>) -> Result<Self> {
        ensure!(
            plan.device.is_on_fabric() || !plan.linux && plan.pcap.is_none(),
            "cards have a switch of their own, without a Linux guest and captures"
        );
        let qemu = plan.device.qemu()?;
        let Programs { kernel, manager } = programs;
        let accel = appliances::decide(&qemu, Machine::Q35, &kernel)?;
        let image = if plan.linux {
            let cache = paths::target().join("linux-guest");
            Some(ui::step("Linux guest", || Image::build(&cache))?)
        } else {
            None
        };
        let dir = TempDir::with_prefix("ferrolite-")?;
        let manager = Manager::start(&manager, 0, dir.path())?;
        let fabric = Fabric::start(&FabricConfig {
            ports: usize::from(NODES) + 1,
            dir: dir.path().to_owned(),
            faults: Faults::default(),
            seed: plan.seed,
            pcap: plan.pcap.map(Path::to_owned),
        })?;
        let cards = plan.device.cards(NODES, dir.path())?;
        let (sender, events) = channel();
        let mut vms = Vec::new();
        for index in 0..NODES {
            let name = node(index);
            let rdma = match &cards {
                Some(cards) => Nic::Card { socket: cards.socket(index.into()).to_owned() },
                None => Nic::Fabric { plug: fabric.plug(index.into()) },
            };
            let driver = plan.device.nic().driver();
            let spec = VmSpec {
                cmdline: format!(
                    "manager=10.0.2.2:{} node={name} nic={driver} {}",
                    manager.port()?,
                    plan.settings
                ),
                index,
                // The machine model of the Linux guest, so that figures can be compared.
                machine: Machine::Q35,
                accel,
                cpus: 1,
                memory_mb: MEMORY_MB,
                kernel: kernel.clone(),
                fw_cfg: vec![FwCfg { name: "opt/ferrolite/key".into(), file: manager.key().to_owned() }],
                initrd: None,
                nics: vec![Nic::Management, rdma],
                boots_again: false,
                name,
            };
            vms.push(Vm::start(&qemu, spec, None, sender.clone())?);
        }
        let guest = match &image {
            None => None,
            Some(image) => {
                let plug = fabric.plug(NODES.into());
                let network = Network { address: LINUX, ..Network::numbered(200, plug) };
                let config = GuestConfig { network: Some(network), ..GuestConfig::default() };
                Some(ui::step("boot", || Guest::boot(&qemu, image, &config))?)
            }
        };
        let json = dir.path().join("nodes.json");
        let mut lab =
            Self { manager, vms, events, guest, cards, fabric, addresses: Vec::new(), loss: 0.0, dir };
        let waiting = lab.manager.wait_nodes(NODES, JOIN, &json)?;
        lab.wait(waiting, JOIN + AFTER)?;
        lab.addresses = addresses(&json)?;
        Ok(lab)
    }

    /// Runs a cell. Returns the client's result; an error names the check that failed. A cell whose Linux
    /// client has found no clock rate has no result, so it runs again.
    pub fn run(&mut self, cell: &Cell) -> Result<Figure> {
        for _ in 1..ATTEMPTS {
            match self.run_once(cell) {
                Err(error) if error.is::<perftest::NoClock>() => {}
                ended => return ended,
            }
        }
        self.run_once(cell)
    }

    fn run_once(&mut self, cell: &Cell) -> Result<Figure> {
        ensure!(cell.loss == 0.0 || self.cards.is_none(), "frames between cards are not lost");
        if self.loss.total_cmp(&cell.loss).is_ne() {
            self.fabric.set_faults(Faults { loss: cell.loss, ..Faults::default() })?;
            self.loss = cell.loss;
        }
        let before = self.linux_counters(cell)?;
        let result = match cell.direction {
            Direction::ApplianceLinux => self.linux_as_server(cell),
            Direction::LinuxAppliance => self.linux_as_client(cell),
            Direction::ApplianceAppliance => self.between(cell),
        };
        if let (Err(_), Some(guest)) = (&result, &mut self.guest) {
            linux::clean_up(guest, cell);
        }
        let figure = result?;
        if let (Some(before), Some(after)) = (before, self.linux_counters(cell)?) {
            linux::clean(&before, &after)?;
        }
        Ok(figure)
    }

    /// Runs an application without input on both appliances. Returns its output.
    pub fn job(&mut self, app: &str, args: &[String]) -> Result<Vec<u8>> {
        let [output, json] = ["output", "figures"].map(|name| self.dir.path().join(name));
        let job =
            Job { app, nodes: NODES, inputs: &[self.empty()?], args, time: None, keep: None, more: &[] };
        let job = self.manager.submit(&job, &output, &json)?;
        self.wait(job, JOB).with_context(|| app.to_owned())?;
        Ok(std::fs::read(output)?)
    }

    /// Returns the processor time that the appliances have used on the host.
    pub fn processor_time(&self) -> Result<Duration> {
        let times = self.vms.iter().filter_map(Vm::process).map(|process| tool::processor_time(process, 2));
        times.sum()
    }

    /// Returns an empty file.
    fn empty(&self) -> Result<PathBuf> {
        let empty = self.dir.path().join("empty");
        std::fs::write(&empty, "")?;
        Ok(empty)
    }

    /// Returns Linux's counters if the fabric is clean; they mean nothing under loss.
    fn linux_counters(&mut self, cell: &Cell) -> Result<Option<linux::Counters>> {
        match &mut self.guest {
            Some(guest) if cell.loss == 0.0 && cell.direction.has_linux() => linux::counters(guest).map(Some),
            _ => Ok(None),
        }
    }

    fn linux_as_server(&mut self, cell: &Cell) -> Result<Figure> {
        linux::serve(self.linux()?, &linux::Device::rxe(), cell)?;
        let client = self.submit(0, cell, Some(LINUX), None)?;
        let client = self.finish(client, cell, true, cell.limit())?;
        linux::served(self.linux()?, AFTER)?;
        let server = linux::buffers(self.linux()?, cell)?;
        judge::compare(cell, &client.buffers, &server)?;
        client.figure.context("the client says no figure")
    }

    fn linux_as_client(&mut self, cell: &Cell) -> Result<Figure> {
        let server = self.submit(0, cell, None, Some(LINUX))?;
        let address = self.address(0)?;
        let found = linux::client(self.linux()?, &linux::Device::rxe(), cell, address, cell.limit());
        if found.is_err() {
            // Usually it is the appliance that knows the cause.
            if let Err(why) = self.finish(server, cell, false, Duration::from_secs(2)) {
                return found.with_context(|| format!("{why:#}"));
            }
            return found;
        }
        let server = self.finish(server, cell, false, AFTER)?;
        let client = linux::buffers(self.linux()?, cell)?;
        judge::compare(cell, &client, &server.buffers)?;
        found
    }

    fn between(&mut self, cell: &Cell) -> Result<Figure> {
        let server = self.submit(1, cell, None, None)?;
        let client = self.submit(0, cell, Some(self.address(1)?), None)?;
        let client = self.finish(client, cell, true, cell.limit())?;
        let server = self.finish(server, cell, false, AFTER)?;
        judge::compare(cell, &client.buffers, &server.buffers)?;
        client.figure.context("the client says no figure")
    }

    fn linux(&mut self) -> Result<&mut Guest> {
        self.guest.as_mut().context("no Linux guest was booted")
    }

    fn address(&self, index: u16) -> Result<Ipv4Addr> {
        self.addresses.get(usize::from(index)).copied().context("no such appliance")
    }

    /// Starts a cell on an appliance, as a job: as the client of a server, or as a server for one client (or
    /// any member).
    fn submit(
        &self,
        index: u16,
        cell: &Cell,
        server: Option<Ipv4Addr>,
        client: Option<Ipv4Addr>,
    ) -> Result<(u16, Process)> {
        let mut words = cell.words();
        words.extend(server.map(|address| address.to_string()));
        words.extend(client.map(|address| format!("--peer={address}")));
        let process = self.manager.perftest(&node(index), &words, &self.empty()?, &self.output(index))?;
        Ok((index, process))
    }

    fn output(&self, index: u16) -> PathBuf {
        self.dir.path().join(format!("output{index}"))
    }

    /// Waits for a job's end and parses its output.
    fn finish(
        &mut self,
        (index, job): (u16, Process),
        cell: &Cell,
        client: bool,
        within: Duration,
    ) -> Result<Appliance> {
        self.wait(job, within).with_context(|| format!("{} as {}", node(index), role(client)))?;
        let output = std::fs::read_to_string(self.output(index))?;
        judge::appliance(&output, cell, client)
    }

    /// Waits for the end of one of the manager's clients. No appliance may end meanwhile.
    fn wait(&mut self, mut process: Process, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            while let Ok(event) = self.events.try_recv() {
                self.check(&event)?;
            }
            if process.poll_quietly()?.is_some() {
                return Ok(());
            }
            self.manager.check()?;
            if let Some(cards) = &mut self.cards
                && let Some(status) = cards.ended()?
            {
                bail!("cx3 ended with {status}: {}", cards.tail());
            }
            interrupt::check()?;
            if Instant::now() >= deadline {
                bail!("did not end within {} s", within.as_secs());
            }
            std::thread::sleep(TICK);
        }
    }

    fn check(&self, event: &Event) -> Result<()> {
        let qemu::vm::EventKind::Exited(exit) = &event.kind else { return Ok(()) };
        let tail = self.vms.get(usize::from(event.index)).map(Vm::tail).unwrap_or_default();
        bail!(
            "{} has ended: {exit}: {}",
            node(event.index),
            appliances::reason(&tail).unwrap_or("it said nothing")
        )
    }
}

fn node(index: u16) -> String {
    format!("node{index}")
}

const fn role(client: bool) -> &'static str {
    if client { "client" } else { "server" }
}

/// Returns the appliances' addresses by number. The manager assigns them in the order of the joins.
fn addresses(nodes: &Path) -> Result<Vec<Ipv4Addr>> {
    let nodes: Value = serde_json::from_slice(&std::fs::read(nodes)?)?;
    let of = |name: &str| {
        let all = nodes.get("nodes")?.as_array()?;
        let rnic =
            all.iter().find(|node| node.get("name").is_some_and(|n| n == name))?.get("rnic")?.as_str()?;
        rnic.split_whitespace().find_map(|word| word.strip_prefix("::ffff:")?.parse().ok())
    };
    (0..NODES)
        .map(|index| of(&node(index)).with_context(|| format!("no address of {}", node(index))))
        .collect()
}
