//! Tests of perftest on an appliance with the emulated card and our driver, against Linux: a card of the same
//! kind, and `rdma_rxe`. The buffers of both sides are compared at the end.

use super::{Step, session, vlan};
use crate::runner::Case;
use anyhow::{Result, bail, ensure};
use lab::appliances::{self, SUCCESS};
use lab::cx3::Plan;
use lab::cx3::lab::{Lab, SOON, Wire, address};
use lab::image;
use lab::perftest::cell::{Cell, Direction, PROGRAMS};
use lab::perftest::judge;
use lab::perftest::linux::{self, Device};
use qemu::cx3::CardConfig;
use qemu::vm::{Event, EventKind, Machine, Vm, VmSpec};
use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The network of an exchange. The appliance's card is its only network device, except on InfiniBand, where
/// RDMA goes by LID.
#[derive(Clone, Copy)]
struct Network {
    /// The appliance's address, for RDMA and for TCP.
    card: Ipv4Addr,
    /// The version of RoCE, or `None` on InfiniBand.
    wire: Option<Wire>,
    /// True if addresses are in the VLAN of the Linux machines' interfaces ([`vlan`]).
    in_vlan: bool,
}

impl Network {
    /// The network of the Linux machines' ports.
    const fn of(wire: Option<Wire>) -> Self {
        Self { card: Ipv4Addr::new(10, 9, 0, 50), wire, in_vlan: false }
    }

    /// Returns a Linux machine's address.
    fn address(self, machine: usize) -> Ipv4Addr {
        if self.in_vlan { vlan::address(machine) } else { address(machine) }
    }

    /// Returns shell code for the index of a Linux machine's GID.
    fn gid(self, lab: &Lab, machine: usize) -> Option<String> {
        let wire = self.wire?;
        Some(if self.in_vlan { vlan::gid(machine, wire) } else { lab.gid(machine, wire) })
    }
}

const MEMORY_MB: u32 = 96;
const TICK: Duration = Duration::from_millis(10);
/// The most READs that the cards accept at once. Linux's programs would use as many as `rdma_rxe` accepts.
const READS: &str = "-o 16";

pub(super) fn cases() -> Vec<Case> {
    let plan = |profile: &str| Plan {
        cards: vec![CardConfig::profile(profile)],
        rxe: usize::from(profile == "pro"),
        appliance: Some(CardConfig::profile(profile)),
        mtu: 1500,
        ..Plan::default()
    };
    let infiniband = Plan { cards: vec![CardConfig::profile("ib"); 2], infiniband: true, ..plan("ib") };
    vec![
        session("perftest quick", Plan { rxe: 0, ..plan("pro") }, || {
            steps(0, Wire::V2, &["ib_send_bw", "ib_read_lat", "ib_atomic_bw"], &[65536])
        }),
        session("perftest in a VLAN", Plan { rxe: 0, ..plan("pro") }, || {
            let network = Network { card: vlan::address(49), in_vlan: true, ..Network::of(Some(Wire::V2)) };
            let mut steps = vec![Step::new("interface", vlan::interfaces)];
            steps.extend(cells(0, network, &["ib_send_bw", "ib_read_lat", "ib_atomic_bw"], &[65536]));
            steps
        })
        .full_if(true),
        session("perftest", plan("pro"), || {
            let of = |machine| steps(machine, Wire::V2, &PROGRAMS, &[8, 4096, 1 << 20]);
            [0, 1].into_iter().flat_map(of).collect()
        })
        .full_if(true),
        session("perftest RoCE v1", plan("cx3"), || steps(0, Wire::V1, &PROGRAMS, &[8, 65536])).full_if(true),
        session("perftest virtual function", plan("vf"), || steps(0, Wire::V1, &PROGRAMS, &[8, 65536]))
            .full_if(true),
        // The other machine is the subnet manager: its ports are up even while there is no appliance.
        session("perftest InfiniBand", infiniband, || {
            let mut steps = vec![Step::new("opensm", |lab| {
                appliances::start_opensm(lab.guest(1)?)?;
                let active =
                    "until grep -q ACTIVE /sys/class/infiniband/mlx4_0/ports/1/state; do usleep 100000; done";
                lab.check(0, active).map(drop)
            })];
            steps.extend(cells(0, Network::of(None), &PROGRAMS, &[8, 65536]));
            steps
        })
        .full_if(true),
    ]
}

/// Returns steps that run each program and size against a Linux machine, once in each direction.
fn steps(machine: usize, wire: Wire, programs: &[&'static str], sizes: &[u32]) -> Vec<Step> {
    cells(machine, Network::of(Some(wire)), programs, sizes)
}

/// Returns steps that run perftest with a Linux machine in a network.
fn cells(machine: usize, network: Network, programs: &[&'static str], sizes: &[u32]) -> Vec<Step> {
    // Ethernet frames have payloads of 1500 bytes.
    let mtu = if network.wire.is_some() { 1024 } else { 4096 };
    let mut steps = Vec::new();
    for program in programs {
        for size in if program.starts_with("ib_atomic") { &[8][..] } else { sizes } {
            for direction in [Direction::ApplianceLinux, Direction::LinuxAppliance] {
                let cell = Cell::new(program, direction, *size, mtu, 0.0, true);
                let name = format!("{cell}, machine {machine}");
                steps.push(Step::new(name, move |lab| run_cell(lab, machine, network, &cell)));
            }
        }
    }
    steps
}

/// An appliance that runs nothing but perftest.
struct Appliance {
    vm: Vm,
    events: Receiver<Event>,
}

impl Appliance {
    fn boot(lab: &Lab, cell: &Cell, network: Network, server: Option<Ipv4Addr>) -> Result<Self> {
        let mut words = cell.words();
        words.extend(server.map(|address| address.to_string()));
        let kernel = image::build()?.elf;
        let vlan = if network.in_vlan { format!("vlan={}:3", vlan::VLAN) } else { String::new() };
        let qemu = &lab::cx3::Tools::get()?.map_err(|why| anyhow::anyhow!("{why}"))?.qemu;
        let spec = VmSpec {
            name: "appliance".into(),
            index: 50,
            machine: Machine::Microvm,
            accel: appliances::decide(qemu, Machine::Microvm, &kernel)?,
            cpus: 1,
            memory_mb: MEMORY_MB,
            cmdline: format!("perftest={} fabric_ip={}/24 nic=mlx4 {vlan}", words.join(","), network.card),
            kernel,
            fw_cfg: Vec::new(),
            initrd: None,
            nics: lab.appliance()?,
            boots_again: false,
        };
        let (sender, events) = channel();
        Ok(Self { vm: Vm::start(qemu, spec, None, sender)?, events })
    }

    /// Waits for a line of the console, and returns all lines so far.
    fn says(&self, wanted: impl Fn(&str) -> bool, within: Duration) -> Result<String> {
        let deadline = Instant::now() + within;
        loop {
            let said = self.vm.tail();
            if let Some(at) = said.iter().rposition(|line| wanted(line)) {
                return Ok(said[..=at].join("\n"));
            }
            let ended = self.events.try_iter().find_map(|event| match event.kind {
                EventKind::Exited(exit) if exit != SUCCESS => Some(exit),
                _ => None,
            });
            if let Some(exit) = ended {
                bail!(
                    "the appliance has ended: {exit}: {}",
                    appliances::reason(&said).unwrap_or("it said nothing")
                );
            }
            ensure!(Instant::now() < deadline, "the appliance prints no more lines: {}", said.join("; "));
            std::thread::sleep(TICK);
        }
    }

    /// Returns the appliance's results.
    fn found(&self, cell: &Cell, client: bool, within: Duration) -> Result<judge::Appliance> {
        let said = self.says(|line| line.starts_with('{'), within)?;
        judge::appliance(&said, cell, client)
    }
}

fn run_cell(lab: &mut Lab, machine: usize, network: Network, cell: &Cell) -> Result<()> {
    let reads = cell.program.starts_with("ib_read") || cell.is_atomic();
    let device = Device {
        name: lab.device(machine).into(),
        gid: network.gid(lab, machine),
        options: if reads { READS.into() } else { String::new() },
    };
    match cell.direction {
        Direction::ApplianceLinux => {
            linux::serve(lab.guest(machine)?, &device, cell)?;
            let server = network.address(machine);
            let client =
                Appliance::boot(lab, cell, network, Some(server))?.found(cell, true, cell.limit())?;
            let guest = lab.guest(machine)?;
            linux::served(guest, SOON)?;
            let server = linux::buffers(guest, cell)?;
            ensure!(client.figure.is_some(), "the client says no figure");
            judge::compare(cell, &client.buffers, &server)
        }
        _ => {
            let appliance = Appliance::boot(lab, cell, network, None)?;
            appliance.says(|line| line.contains(" serves at "), SOON)?;
            let guest = lab.guest(machine)?;
            linux::client(guest, &device, cell, network.card, cell.limit())?;
            let client = linux::buffers(guest, cell)?;
            let server = appliance.found(cell, false, SOON)?;
            judge::compare(cell, &client, &server.buffers)
        }
    }
}
