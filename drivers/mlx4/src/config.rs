//! The configuration of a driver.

use alloc::sync::Arc;
use core::ops::Range;
use platform::IoAddr;

/// The link layer of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// Ethernet, with RoCE.
    Ethernet,
    /// Native InfiniBand.
    InfiniBand,
}

/// The memory that peers may reach with the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Remote {
    /// Everything that the card can address, by the same key as local work requests: all memory, including
    /// the kernel's code and page tables, and the registers of devices. Such a key needs no page entries, and
    /// cards are not known to honour bounds of it.
    Physical,
    /// Peers reach the given ranges of memory, through a second key with page entries. The card refuses other
    /// addresses.
    Ranges(Ranges),
}

impl Remote {
    /// Makes a single range from its first address, which must be page-aligned, and its length in bytes.
    #[must_use]
    pub fn part(base: IoAddr, len: u64) -> Self {
        Self::Ranges(core::iter::once(base.0..base.0.saturating_add(len)).collect())
    }
}

/// Ranges of the card's addresses, in ascending order. They are disjoint and not empty, and begin and end at
/// page boundaries (4096 bytes), except that the last one may end anywhere.
pub type Ranges = Arc<[Range<u64>]>;

/// A VLAN (IEEE 802.1Q), and the priority of frames there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vlan {
    id: u16,
    priority: u8,
}

impl Vlan {
    /// Returns the VLAN with the number `id`, from 1 to 4094, and a priority from 0 to 7.
    #[must_use]
    pub fn new(id: u16, priority: u8) -> Option<Self> {
        ((1..=4094).contains(&id) && priority < 8).then_some(Self { id, priority })
    }

    /// Returns the number of the VLAN.
    pub(crate) const fn id(self) -> u16 {
        self.id
    }

    /// Returns the priority of frames.
    pub(crate) const fn priority(self) -> u8 {
        self.priority
    }

    /// Returns the bytes of a tag behind its type: priority and number.
    pub(crate) const fn tag(self) -> u16 {
        (self.priority as u16) << 13 | self.id
    }
}

/// A port in use, as plain frames name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FramePort {
    /// The port of RDMA, [`Config::port`].
    Rdma,
    /// The port of [`Config::second`], which has no RDMA.
    Second,
}

impl FramePort {
    /// All ports that can be in use, in the order of their indices.
    pub(crate) const ALL: [Self; 2] = [Self::Rdma, Self::Second];
}

/// The configuration of a driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The number of the port of RDMA, from 1.
    pub port: u8,
    /// The number of another port, for plain frames on Ethernet without RDMA; `None`: one port is in use.
    /// Bring-up fails on a virtual function, and if the port is not on Ethernet.
    pub second: Option<u8>,
    /// The layer for a port that supports both; `None`: the one that the card suggests. Bring-up fails if the
    /// port does not support the layer.
    pub layer: Option<Layer>,
    /// The memory that peers may reach.
    pub remote: Remote,
    /// True if the port of RDMA, where it is on Ethernet, also sends and receives plain frames
    /// ([`Mlx4::receive_frames`](crate::Mlx4::receive_frames)).
    pub frames: bool,
    /// The maximum payload of an Ethernet frame on the port's network, in bytes.
    pub mtu: u16,
    /// The VLAN of the port of RDMA, where that is on Ethernet, for RDMA and frames alike; `None`: frames
    /// have no tag. Bring-up fails on a virtual function, whose master sets its VLANs.
    pub vlan: Option<Vlan>,
    /// The number of the partition of an InfiniBand port, from 1 to 0x7ffe; `None`: the first entry of the
    /// port's table of P_Keys, which is the default partition. The link is not active before the subnet
    /// manager has made the port a member.
    pub partition: Option<u16>,
    /// The MSI-X vector of interrupts.
    pub vector: u16,
}

impl Default for Config {
    /// Returns the configuration for the first port, on a network with frames of the usual size.
    fn default() -> Self {
        Self {
            port: 1,
            second: None,
            layer: None,
            remote: Remote::Physical,
            frames: false,
            mtu: 1500,
            vlan: None,
            partition: None,
            vector: 0,
        }
    }
}
