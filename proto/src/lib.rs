//! The messages between nodes, the manager and clients on control connections, and the Noise channel that
//! carries them.
//!
//! Every connection starts with a Noise handshake under the cluster key ([`channel`]), followed by [`Hello`],
//! followed by whole messages in [postcard](https://docs.rs/postcard) encoding. RDMA and RPC traffic does not
//! use control connections.
//!
//! # Neighbours
//! `manager` is one end of a control connection, `lite` and `runtime` are the other.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod bytes;
pub mod channel;
mod client;
mod dataset;
mod departure;
mod id;
mod inventory;
mod job;
mod machine;
mod member;
mod node;
mod qos;
mod queue;
mod rollout;
mod standing;
mod telemetry;
mod text;
mod user;
mod voucher;

pub use bytes::{ByteRate, NoByteRate, parse_bytes};
pub use client::{FromClient, JobPhase, JobStatus, NodeState, NodeStatus, Refusal, ToClient};
pub use dataset::{Dataset, DatasetStatus};
pub use departure::Departures;
pub use id::{Incarnation, JobId, NodeId};
pub use inventory::{InventoryNode, Presence};
pub use job::{AppManifest, CutRule, InputFile, JobReport, JobStanding, JobStart};
pub use machine::{BootImage, PowerAction, PowerVerb};
pub use member::{BootReport, Join, Member, Resume, Resumed, RnicOffer, Welcome};
pub use node::{MAX_NAME, MAX_VALUE, NameError, ToManager, ToNode, check_lengths};
pub use qos::{JobQos, QosRules, RdmaPriority};
pub use queue::{JobDetails, JobEnd, JobInfo, JobRequest, JobState, Terms};
pub use rollout::{ImageInfo, NodeStep, RolloutPlan, RolloutState, RolloutStatus};
pub use standing::{NodeStanding, NodeView, RunningImage, Withdrawal};
pub use telemetry::{LogLine, Severity, Telemetry};
pub use text::{check_text, is_printable, printable};
pub use user::{AuditEntry, AuditHash, UserRole, UserStatus};
pub use voucher::{Attempt, Forged, MemberKey, MessageTag, Nonce, ResumeSecret, VoucherKey, VouchingSecret};

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The version of these messages. The manager serves nodes and clients of all versions from
/// [`OLDEST_VERSION`] on, and sends none a message that its version does not have.
///
/// Messages of a released version never change: new ones are new variants at the end of an enumeration.
pub const PROTOCOL_VERSION: u16 = 11;

/// The oldest version that a manager of this version serves. It is at most that of the newest release
/// (`releases.toml`).
pub const OLDEST_VERSION: u16 = 9;

/// The beginning of the reason with which a manager refuses a version that it does not speak.
pub const OTHER_VERSION: &str = "protocol version ";

/// Returns the version to try after a manager has refused `version`, if the reason for that is the version:
/// a manager of the former release refuses the messages of this one.
#[must_use]
pub fn version_after(version: u16, refusal: &str) -> Option<u16> {
    let lower = version.checked_sub(1).filter(|lower| *lower >= OLDEST_VERSION);
    lower.filter(|_| refusal.starts_with(OTHER_VERSION))
}

/// The beginning of the reason with which a manager that does not lead refuses a peer.
const STANDBY: &str = "this manager is a standby";

/// Returns the reason with which a manager refuses a peer while another one leads.
#[must_use]
pub fn standby_behind(leader: &str) -> Reason {
    format!("{STANDBY}; the leader is {leader}")
}

/// Returns the reason with which a manager refuses a peer while it knows no leader.
#[must_use]
pub fn standby_without(why: &str) -> Reason {
    format!("{STANDBY}; {why}")
}

/// Returns true if a manager has refused because it does not lead. The peer asks another manager, or this one
/// again later.
#[must_use]
pub fn is_standby(refusal: &str) -> bool {
    refusal.starts_with(STANDBY)
}

/// Returns the address of the leader, if a standby has named it.
#[must_use]
pub fn leader_of(refusal: &str) -> Option<&str> {
    refusal.strip_prefix(STANDBY)?.strip_prefix("; the leader is ")
}

/// The manager's TCP port, as in the original LITE.
pub const MANAGER_PORT: u16 = 18500;

/// The first message of the side that connected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Hello {
    /// A node that wants to join. Answered by [`ToNode::Welcome`] or [`ToNode::Refused`].
    Node(Join),
    /// A command line or dashboard. Answered by [`ToClient::Hello`] or [`ToClient::Failed`].
    Client {
        /// [`PROTOCOL_VERSION`] of the client.
        version: u16,
    },
    /// A node that does not start, because of a mistake in its settings or of its machine. The manager logs
    /// the reason and ends the connection.
    Unfit {
        /// [`PROTOCOL_VERSION`] of the node.
        version: u16,
        /// The node's name, at most [`Join::MAX_TEXT`] bytes.
        name: String,
        /// The reason.
        reason: Reason,
    },
    /// A member whose connection has ended. Answered by [`ToNode::Resumed`] or [`ToNode::Refused`]. A manager
    /// that cannot decide closes the connection, and the node tries again.
    Resume(Resume),
}

impl Hello {
    /// Returns the kind and the protocol version of an encoded `Hello` of any version. The layout up to
    /// there, kind and version first, never changes, so that a peer of another version receives a clear
    /// refusal.
    #[must_use]
    pub fn peek_version(bytes: &[u8]) -> Option<(HelloKind, u16)> {
        match postcard::take_from_bytes::<(u32, u16)>(bytes) {
            Ok(((0 | 2 | 3, version), _)) => Some((HelloKind::Node, version)),
            Ok(((1, version), _)) => Some((HelloKind::Client, version)),
            _ => None,
        }
    }

    /// Returns true if an encoded `Hello` of any version is a [`Resume`](Self::Resume).
    #[must_use]
    pub fn is_resume(bytes: &[u8]) -> bool {
        bytes.first() == Some(&3)
    }
}

/// The sender of a [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloKind {
    /// A node.
    Node,
    /// A client.
    Client,
}

/// A message that could not be decoded, or was too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed control message")]
pub struct Malformed;

/// Encodes a message.
///
/// # Panics
/// Never: the messages hold nothing that postcard cannot encode.
pub fn encode<M: Serialize>(message: &M) -> Vec<u8> {
    postcard::to_allocvec(message).expect("control messages are plain data")
}

/// Returns the length of an encoded message, in bytes, without encoding it.
///
/// # Panics
/// Never, as [`encode`].
pub fn encoded_len<M: Serialize>(message: &M) -> usize {
    let size = postcard::ser_flavors::Size::default();
    postcard::serialize_with_flavor(message, size).expect("control messages are plain data")
}

/// Decodes a message.
///
/// # Errors
/// [`Malformed`] if the bytes are not one message, or are followed by others.
pub fn decode<'a, M: Deserialize<'a>>(bytes: &'a [u8]) -> Result<M, Malformed> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(Malformed),
    }
}

/// A reason for a user to read, in one line.
pub type Reason = String;
