//! Joining the cluster, and what is known of its members.

use crate::{AppManifest, Incarnation, NodeId};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};
use verbs::{Gid, LinkKind, MacAddr, MemoryKey, PathMtu};

/// What a node's RNIC offers to peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RnicOffer {
    /// The driver's name: `softroce`, `mlx4`, `ibverbs`.
    pub driver: String,
    /// Frame formats it speaks, best first. Peers use the first of the one that connects which both have.
    pub links: Vec<LinkKind>,
    /// The port's Ethernet address (zero on InfiniBand).
    pub mac: MacAddr,
    /// The port's GID if it has one already (a Linux host); otherwise the manager assigns one.
    pub gid: Option<Gid>,
    /// The port's InfiniBand local identifier, zero on Ethernet.
    pub lid: u16,
    /// The largest path MTU of the port.
    pub mtu: PathMtu,
    /// READs and atomics it answers at once on a queue pair.
    pub max_rd_atomic: u8,
    /// The key to all of its memory, and the range that the key covers.
    pub key: MemoryKey,
    /// Whether addresses in that range are physical (an appliance) or virtual (a process on a host).
    pub physical: bool,
}

/// Stages of the boot, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootReport {
    /// Stage and microseconds from the kernel's first instruction to its end.
    pub stages: Vec<(String, u32)>,
}

/// A node's wish to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION) of the node.
    pub version: u16,
    /// The name by which operators know it; not empty, at most 64 bytes. A name in use by a live member is refused.
    pub name: String,
    /// Whether it wants the id that a node of its name had before, over reboots of both and restarts of the manager. Otherwise
    /// it gets one that no member has and no name keeps.
    pub keep_id: bool,
    /// Its RNIC.
    pub rnic: RnicOffer,
    /// Bytes of memory it has.
    pub memory: u64,
    /// Bytes of memory free for jobs.
    pub memory_free: u64,
    /// Processors that run tasks.
    pub cpus: u16,
    /// Applications compiled in.
    pub apps: Vec<AppManifest>,
    /// How it came up.
    pub boot: BootReport,
}

/// The grant of a join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The node's id.
    pub node: NodeId,
    /// This life of it.
    pub incarnation: Incarnation,
    /// The GID that its RNIC shall use.
    pub gid: Gid,
    /// Milliseconds without a heartbeat after which the manager declares it dead. It sends one at least every third.
    pub lease_ms: u32,
    /// The other members now.
    pub members: Vec<Member>,
}

/// A member of the cluster, as its peers see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its id.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// Its name.
    pub name: String,
    /// The GID that its RNIC uses.
    pub gid: Gid,
    /// Its RNIC.
    pub rnic: RnicOffer,
}
