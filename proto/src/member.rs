//! Joining the cluster, and what is known of its members.

use crate::{AppManifest, Incarnation, NodeId, Reason, check_text};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};
use verbs::{Gid, LinkKind, MacAddr, MemoryKey, PathMtu};

/// What a node's RNIC offers to peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RnicOffer {
    /// The driver's name: `softroce`, `mlx4`, `ibverbs`; at most [`MAX_TEXT`](Join::MAX_TEXT) bytes.
    pub driver: String,
    /// Frame formats it speaks, best first, at most [`MAX_LINKS`](Join::MAX_LINKS). Peers use the first of the one that
    /// connects which both have.
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
    /// Stage and microseconds from the kernel's first instruction to its end; at most
    /// [`MAX_STAGES`](Join::MAX_STAGES), with names of at most [`MAX_TEXT`](Join::MAX_TEXT) bytes.
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
    /// Applications compiled in, at most [`MAX_APPS`](Self::MAX_APPS), each with a name of at most
    /// [`MAX_TEXT`](Self::MAX_TEXT) bytes and at most [`MAX_ABOUT`](Self::MAX_ABOUT) bytes about it.
    pub apps: Vec<AppManifest>,
    /// How it came up.
    pub boot: BootReport,
}

impl Join {
    /// Bytes of the longest name, driver or other word.
    pub const MAX_TEXT: usize = 64;
    /// Kinds of link.
    pub const MAX_LINKS: usize = 8;
    /// Applications.
    pub const MAX_APPS: usize = 64;
    /// Bytes of the longest text about an application.
    pub const MAX_ABOUT: usize = 256;
    /// Stages of the boot.
    pub const MAX_STAGES: usize = 64;
    /// Bytes of the longest encoded join. The manager keeps that many for a member at most.
    pub const MAX_BYTES: usize = 16 << 10;

    /// Checks what can be said of a join by itself: lengths and printable text.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn check(&self) -> Result<(), Reason> {
        let within = |what: &str, has: usize, may: usize| {
            if has > may { Err(format!("it has {has} {what}, and may have {may}")) } else { Ok(()) }
        };
        if !(1..=Self::MAX_TEXT).contains(&self.name.len()) {
            return Err(format!("a node name has 1 to {} bytes", Self::MAX_TEXT));
        }
        check_text("the node name", &self.name, Self::MAX_TEXT)?;
        check_text("the name of the driver", &self.rnic.driver, Self::MAX_TEXT)?;
        within("links", self.rnic.links.len(), Self::MAX_LINKS)?;
        within("applications", self.apps.len(), Self::MAX_APPS)?;
        for app in &self.apps {
            check_text("the name of an application", &app.name, Self::MAX_TEXT)?;
            check_text("the text about an application", &app.about, Self::MAX_ABOUT)?;
        }
        within("stages of its boot", self.boot.stages.len(), Self::MAX_STAGES)?;
        for (stage, _) in &self.boot.stages {
            check_text("the name of a stage of its boot", stage, Self::MAX_TEXT)?;
        }
        within("bytes of description", crate::encode(self).len(), Self::MAX_BYTES)
    }
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
    /// Other members now: all of them if they are few. The rest follow at once as [`Joined`](crate::ToNode::Joined), so that
    /// no message is longer than a control connection takes.
    pub members: Vec<Member>,
}

impl Welcome {
    /// Members in a [`Welcome`]; an encoded member has less than 256 bytes.
    pub const MAX_MEMBERS: usize = 1024;
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
