//! The messages of a join, and the description of members.

use crate::{AppManifest, Incarnation, MemberKey, NodeId, Reason, ResumeSecret, check_text};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use serde::{Deserialize, Serialize};
use verbs::{Gid, LinkKind, MacAddr, MemoryKey, PathMtu};

/// The properties of a node's RNIC that its peers need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RnicOffer {
    /// The driver's name: `softroce`, `mlx4`, `ibverbs`; at most [`MAX_TEXT`](Join::MAX_TEXT) bytes.
    pub driver: String,
    /// The frame formats that it supports, best first, at most [`MAX_LINKS`](Join::MAX_LINKS). A connection
    /// uses the first of the connecting side's that both have.
    pub links: Vec<LinkKind>,
    /// The port's Ethernet address (zero on InfiniBand).
    pub mac: MacAddr,
    /// The port's GID if it has one already (a Linux host); otherwise the manager assigns one.
    pub gid: Option<Gid>,
    /// The port's InfiniBand local identifier, zero on Ethernet.
    pub lid: u16,
    /// The largest path MTU of the port.
    pub mtu: PathMtu,
    /// The maximum number of READs and atomics that it accepts at once on a queue pair.
    pub max_rd_atomic: u8,
    /// The key to all of its memory, and the range that the key covers.
    pub key: MemoryKey,
    /// True if addresses in that range are physical (an appliance), false if they are virtual (a process on a
    /// host).
    pub physical: bool,
}

/// The duration of the boot, by stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootReport {
    /// The stages in order: name, and microseconds from the kernel's first instruction to the stage's end. At
    /// most [`MAX_STAGES`](Join::MAX_STAGES), with names of at most [`MAX_TEXT`](Join::MAX_TEXT) bytes.
    pub stages: Vec<(String, u32)>,
}

/// A node's request to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION) of the node.
    pub version: u16,
    /// The name by which operators know the node; not empty, at most 64 bytes. The name of a present member
    /// is refused.
    pub name: String,
    /// True if the node wants the id that a node of its name had before, across reboots of the node and
    /// restarts of the manager. Otherwise it receives an id that no member has and that is reserved for no
    /// name.
    pub keep_id: bool,
    /// The node's RNIC.
    pub rnic: RnicOffer,
    /// The node's memory, in bytes.
    pub memory: u64,
    /// The memory that is free for jobs, in bytes.
    pub memory_free: u64,
    /// The number of processors that run tasks.
    pub cpus: u16,
    /// The applications compiled in, at most [`MAX_APPS`](Self::MAX_APPS), each with a name of at most
    /// [`MAX_TEXT`](Self::MAX_TEXT) bytes and a description of at most [`MAX_ABOUT`](Self::MAX_ABOUT) bytes.
    pub apps: Vec<AppManifest>,
    /// The duration of the boot.
    pub boot: BootReport,
    /// A random number of the present boot of the machine.
    pub boot_id: u64,
}

impl Join {
    /// The maximum length of a name, in bytes.
    pub const MAX_TEXT: usize = 64;
    /// The maximum number of frame formats.
    pub const MAX_LINKS: usize = 8;
    /// The maximum number of applications.
    pub const MAX_APPS: usize = 64;
    /// The maximum length of an application's description, in bytes.
    pub const MAX_ABOUT: usize = 256;
    /// The maximum number of boot stages.
    pub const MAX_STAGES: usize = 64;
    /// The maximum length of an encoded join, in bytes. The manager keeps no more for a member.
    pub const MAX_BYTES: usize = 16 << 10;

    /// Checks the lengths of a join, and that its text is printable.
    ///
    /// # Errors
    /// A reason for users.
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

/// The manager's answer to a join that it grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The node's id.
    pub node: NodeId,
    /// The incarnation that the join begins.
    pub incarnation: Incarnation,
    /// The GID that the node's RNIC must use.
    pub gid: Gid,
    /// The time without a heartbeat after which the manager declares the node dead, in milliseconds. The node
    /// sends a heartbeat at least every third of it.
    pub lease_ms: u32,
    /// The time of the manager's clock, in nanoseconds.
    pub time: u64,
    /// The key of the membership, from which the keys of [vouchers](crate::ToNode::Voucher) for this node are
    /// computed.
    pub key: MemberKey,
    /// The proof with which the node [resumes](Resume) its membership.
    pub secret: ResumeSecret,
    /// The number of the manager's process. It grows with each start of a manager.
    pub epoch: u64,
    /// The other present members, up to [`MAX_MEMBERS`](Self::MAX_MEMBERS). The others follow at once as
    /// [`Joined`](crate::ToNode::Joined), so that no message is longer than a control connection carries.
    pub members: Vec<Member>,
}

impl Welcome {
    /// The maximum number of members in a [`Welcome`]. An encoded member has less than 256 bytes.
    pub const MAX_MEMBERS: usize = 1024;
}

/// A member's request to go on with its membership on a new connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION) of the node.
    pub version: u16,
    /// The node's id.
    pub node: NodeId,
    /// The node's incarnation.
    pub incarnation: Incarnation,
    /// The [secret](Welcome::secret) of the membership.
    pub secret: ResumeSecret,
    /// The largest epoch of a manager that the node has seen.
    pub epoch: u64,
}

impl Resume {
    /// Returns the time that a node waits for the answer before it asks on another connection: half of the
    /// lease. A manager that has started again expects its members within one lease, and the machine of the
    /// former one may have failed with the question.
    #[must_use]
    pub fn answer_within(lease: Duration) -> Duration {
        lease / 2
    }
}

/// The manager's answer to a [`Resume`] that it grants. Before it the manager sends [`Left`] for each
/// departure that is not settled, and [`Joined`] for each other member.
///
/// [`Left`]: crate::ToNode::Left
/// [`Joined`]: crate::ToNode::Joined
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// The number of the manager's process.
    pub epoch: u64,
    /// The time of the manager's clock, in nanoseconds.
    pub time: u64,
    /// The ended incarnations that some member has not confirmed. All others are settled.
    pub unsettled: Vec<(NodeId, Incarnation)>,
}

/// A member of the cluster, as its peers see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The node's id.
    pub node: NodeId,
    /// The node's incarnation.
    pub incarnation: Incarnation,
    /// The node's name.
    pub name: String,
    /// The GID that the node's RNIC uses.
    pub gid: Gid,
    /// The node's RNIC.
    pub rnic: RnicOffer,
}
