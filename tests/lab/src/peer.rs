//! A Linux machine with SoftRoCE (`rdma_rxe`) on a fabric: its own one, or one of other machines.

use anyhow::{Context, Result};
use fabric::{Fabric, FabricConfig, Plug};
use qemu::Qemu;
use qemu::linux::{Guest, GuestConfig, Image, Network};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use tempfile::TempDir;

/// The number of ports for others on a fabric of the peer's own.
const FREE_PORTS: usize = 3;
/// Memory beyond twice the content of the initramfs, in MiB.
const SPARE_MIB: u32 = 200;

/// The properties of a peer.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The socket of a fabric to join; `None` starts a fabric.
    pub fabric: Option<PathBuf>,
    /// The address on the fabric, and the length of its network's prefix in bits. `None` is 10.0.0.1/24,
    /// or 10.77.255.1/16 on the fabric of another run, which is in the appliances' network.
    pub address: Option<(Ipv4Addr, u8)>,
    /// The largest IP packet on the fabric, in bytes.
    pub mtu: u16,
    /// The processors.
    pub cpus: u32,
    /// The memory in MiB; `None` is what the packages and files need.
    pub memory_mib: Option<u32>,
    /// Files in the machine, each with the file of the host.
    pub files: Vec<(String, PathBuf)>,
}

/// A running peer, and its fabric.
pub struct Peer {
    /// The machine.
    pub guest: Guest,
    /// The machine's port of the fabric.
    pub network: Network,
    fabric: Option<Fabric>,
    // The directory of the fabric's sockets. Declared last, because it must be dropped after the fabric.
    _dir: TempDir,
}

impl Peer {
    /// Boots a peer.
    pub fn boot(qemu: &Qemu, image: &Image, plan: &Plan) -> Result<Self> {
        let dir = TempDir::with_prefix("ferrolite-").context("cannot make a temporary directory")?;
        let (fabric, plug, default) = match &plan.fabric {
            Some(socket) => (None, Plug::Stream(socket.clone()), (Ipv4Addr::new(10, 77, 255, 1), 16)),
            None => {
                let fabric = Fabric::start(&FabricConfig::plain(1 + FREE_PORTS, dir.path()))?;
                let plug = fabric.plug(0);
                (Some(fabric), plug, (Ipv4Addr::new(10, 0, 0, 1), 24))
            }
        };
        let (address, prefix) = plan.address.unwrap_or(default);
        let [_, b, c, d] = address.octets();
        let network =
            Network { plug, mac: [0x52, 0x54, 0, b, c, d], address, prefix, mtu: plan.mtu, rxe: true };
        let config = GuestConfig {
            cpus: plan.cpus,
            memory_mib: plan.memory_mib.unwrap_or_else(|| memory_mib(image, plan)),
            network: Some(network.clone()),
            management: true,
            files: plan.files.clone(),
            ..GuestConfig::default()
        };
        Ok(Self { guest: Guest::boot(qemu, image, &config)?, network, fabric, _dir: dir })
    }

    /// Returns the sockets of the fabric that others can join.
    #[must_use]
    pub fn free_ports(&self) -> Vec<PathBuf> {
        let fabric = self.fabric.iter();
        fabric.flat_map(|fabric| (1..=FREE_PORTS).map(|n| fabric.socket(n).to_owned())).collect()
    }
}

/// Returns the guest's memory in MiB: twice the unpacked files, and spare room.
fn memory_mib(image: &Image, plan: &Plan) -> u32 {
    let files: u64 =
        plan.files.iter().filter_map(|(_, host)| Some(std::fs::metadata(host).ok()?.len())).sum();
    let files = u32::try_from(files.div_ceil(1 << 20)).unwrap_or(u32::MAX / 4);
    (SPARE_MIB + 2 * (image.size_mib() + files)).max(256)
}
