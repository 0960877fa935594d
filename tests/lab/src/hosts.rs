//! Linux machines as nodes beside appliances, on one fabric.

use crate::appliances::{RdmaNic, start_opensm};
use crate::cluster::{Cards, Cluster};
use crate::{cargo, paths, tool};
use anyhow::{Context, Result, bail};
use qemu::linux::{Card, Guest, GuestConfig, Image, Job, Network, Starting};
use qemu::vm::Nic;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The longest wait for anything in a guest, on a busy host.
const LIMIT: Duration = Duration::from_secs(120);
/// The directory of the programs in the guest.
pub const IN_GUEST: &str = "/opt/ferrolite";
/// The length of the network's prefix, in bits.
const PREFIX: u8 = 16;

/// Returns a Linux machine's address, near the end of the network in which the manager assigns addresses.
fn address(machine: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 255, machine + 1)
}

/// A VLAN of Linux machines, and the priority of their frames there that are not of RDMA.
#[derive(Clone, Copy, Debug)]
pub struct Vlan {
    /// The number, from 1 to 4094.
    pub id: u16,
    /// The priority, from 0 to 7.
    pub priority: u8,
}

/// The plan of a lab.
#[derive(Default)]
pub struct Plan<'a> {
    /// The RDMA devices of the appliances, one appliance each.
    pub appliances: &'a [RdmaNic],
    /// The RDMA devices of the Linux machines, one machine each. A machine uses `rdma_rxe` where an appliance
    /// would use softroce. If the first has an InfiniBand card, it is the subnet manager.
    pub machines: &'a [RdmaNic],
    /// Options of the manager.
    pub manager: &'a [&'a str],
    /// Further packages of the machines.
    pub packages: &'a [&'a str],
    /// The files that each machine gets in the directory [`IN_GUEST`]: the name there, and the path on the
    /// host.
    pub files: &'a [(&'a str, PathBuf)],
    /// Further words of the appliances' command lines.
    pub options: &'a str,
    /// The VLAN in which Linux machines with Ethernet cards have their addresses.
    pub vlan: Option<Vlan>,
    /// The file for a capture of the fabric, complete once the lab is dropped.
    pub pcap: Option<&'a Path>,
    /// The number of a partition of which the subnet manager makes all ports full members.
    pub partition: Option<u16>,
    /// True if the appliances have no other network device than a card with two ports, of which the second
    /// leads to the manager.
    pub manage_by_second: bool,
}

/// Appliances, and Linux machines on their fabric.
pub struct Lab {
    /// The manager and the appliances.
    pub cluster: Cluster,
    guests: Vec<Guest>,
    /// True if the Linux machines' addresses are those of an interface in a VLAN.
    in_vlan: bool,
}

impl Lab {
    /// Starts all machines, the appliances last, which may not have joined on return.
    pub fn start(plan: &Plan, log: &Path) -> Result<Self> {
        let &Plan {
            appliances,
            machines,
            manager,
            packages,
            files,
            options,
            vlan,
            pcap,
            partition,
            manage_by_second,
        } = plan;
        let image = Image::build_with(&paths::target().join("linux-guest"), packages)?;
        let nics = [appliances, machines].concat();
        let mut cluster =
            Cluster::prepare(nics, Cards { pcap, manage_by_second, ..Cards::default() }, manager, log)?;
        let mut files: Vec<_> =
            files.iter().map(|(name, path)| (format!("{IN_GUEST}/{name}"), path.clone())).collect();
        files.push((format!("{IN_GUEST}/cluster.key"), cluster.manager.key().to_owned()));
        let size: u64 = files.iter().map(|(_, path)| path.metadata().map_or(0, |meta| meta.len())).sum();
        let files_mib = u32::try_from(size >> 20).unwrap_or(u32::MAX);
        let start = |machine: u8| {
            let (number, address) = (machine + 1, address(machine));
            let (card, network) = match cluster.rdma(appliances.len() + usize::from(machine)) {
                Nic::Card { socket } => {
                    let card = Card::numbered(number, socket);
                    let of_port = if vlan.is_none() { Some((address, PREFIX)) } else { card.address };
                    (Some(Card { address: of_port, ..card }), None)
                }
                Nic::Fabric { plug } => {
                    (None, Some(Network { address, prefix: PREFIX, ..Network::numbered(number, plug) }))
                }
                Nic::Management | Nic::Netboot { .. } => {
                    bail!("an RDMA device is none of the management network")
                }
            };
            let config = GuestConfig {
                memory_mib: 320 + 2 * (image.size_mib() + files_mib),
                card,
                network,
                management: true,
                files: files.clone(),
                console: Some(log.with_extension(format!("linux{machine}.log"))),
                boot_within: LIMIT,
                ..GuestConfig::default()
            };
            Guest::start(cluster.qemu(), &image, &config)
        };
        let starting = (0..).zip(machines).map(|(machine, _)| start(machine)).collect::<Result<Vec<_>>>()?;
        let mut guests = starting.into_iter().map(Starting::ready).collect::<Result<Vec<_>>>()?;
        if let (Some(guest), Some(true)) = (guests.first_mut(), machines.first().map(RdmaNic::is_infiniband))
        {
            if let Some(number) = partition {
                let partitions = format!("Default=0x7fff: ALL=full;\\nferrolite={number:#x}: ALL=full;\\n");
                let write =
                    format!("mkdir -p /etc/opensm && printf '{partitions}' >/etc/opensm/partitions.conf");
                guest.check(&write, LIMIT)?;
            }
            start_opensm(guest)?;
        }
        if let Some(vlan) = vlan {
            for (machine, guest) in (0..).zip(&mut guests) {
                enter(guest, vlan, address(machine))?;
            }
        }
        cluster.boot(u16::try_from(appliances.len())?, options, None, log)?;
        Ok(Self { cluster, guests, in_vlan: vlan.is_some() })
    }

    /// Returns a Linux machine.
    pub fn guest(&mut self, machine: u8) -> Result<&mut Guest> {
        self.guests.get_mut(usize::from(machine)).context("there is no such machine")
    }

    /// Starts the daemon in a machine and waits until it has joined.
    pub fn join(&mut self, machine: u8) -> Result<Job> {
        let command = self.daemon(machine)?;
        let guest = self.guest(machine)?;
        let process = guest.background(&command)?;
        let joined = guest.wait_until_printed(&process, "joined as", LIMIT);
        joined.with_context(|| format!("lite-node does not join from machine {machine}"))?;
        Ok(process)
    }

    /// Returns `HOST:PORT` of the manager, as a guest reaches it.
    pub fn manager(&self) -> Result<String> {
        Ok(format!("10.0.2.2:{}", self.cluster.manager.port()?))
    }

    /// Returns the daemon's command line in a machine.
    pub fn daemon(&self, machine: u8) -> Result<String> {
        let manager = self.manager()?;
        let which = if self.in_vlan { format!(" --address {}", address(machine)) } else { String::new() };
        Ok(format!(
            "exec {IN_GUEST}/lite-node --manager {manager} --key-file {IN_GUEST}/cluster.key --name linux{machine} \
             --memory 64M{which}"
        ))
    }

    /// Waits until the cluster has `count` members.
    pub fn members(&self, count: u16, log: &Path) -> Result<()> {
        let mut nodes = self.cluster.manager.client("nodes");
        nodes.args(["--wait", &count.to_string(), "--timeout", "120"]);
        tool::run_ok(&mut nodes, log, LIMIT + LIMIT).map(drop)
    }

    /// Returns a command that runs a job.
    pub fn submit(&self, app: &str, input: &Path, output: &Path) -> Command {
        let mut submit = self.cluster.manager.client("submit");
        submit.args(["--app", app, "--input"]).arg(input).arg("--output").arg(output);
        submit
    }
}

/// Adds an interface in a VLAN, with an address, to a machine's card.
fn enter(guest: &mut Guest, vlan: Vlan, address: Ipv4Addr) -> Result<()> {
    let Vlan { id, priority } = vlan;
    let script = format!(
        "ip link add link mlx0 name vlan type vlan id {id} && vconfig set_egress_map vlan 0 {priority} && \
         ip addr add {address}/{PREFIX} dev vlan && ip link set vlan up"
    );
    guest.check(&script, LIMIT).map(drop)
}

/// Returns the daemon, built and stripped.
pub fn lite_node(log: &Path) -> Result<(&'static str, PathBuf)> {
    Ok(("lite-node", program("lite-node", log)?))
}

/// Strips a program or library that the build of the tests has made.
pub fn program(file: &str, log: &Path) -> Result<PathBuf> {
    let stripped = paths::state()?.join(file);
    let mut strip = Command::new("strip");
    strip.arg("--strip-unneeded").arg(cargo::built_for_tests(file)?).arg("-o").arg(&stripped);
    tool::run_ok(&mut strip, log, LIMIT)?;
    Ok(stripped)
}
