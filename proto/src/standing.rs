//! The state of a node for operators: in service, or out of service with a reason.

use crate::{JobId, NodeStatus, Reason};
use alloc::format;
use alloc::string::{String, ToString};
use serde::{Deserialize, Serialize};

/// The circumstances under which a node was taken out of service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withdrawal {
    /// The reason, for people.
    pub reason: Reason,
    /// The client or the part of the manager that has done it.
    pub who: String,
    /// The time, in milliseconds since the beginning of 1970 (UTC).
    pub since_ms: u64,
}

impl Withdrawal {
    /// The maximum length of a reason, in bytes.
    pub const MAX_REASON: usize = 256;
}

/// The state of a node. A node takes jobs in the state `Ready` alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeStanding {
    /// The node is connected, and takes jobs.
    Ready,
    /// The node's connection has ended. The node is dead when its lease ends, unless it resumes.
    Silent,
    /// The manager has started since the node joined, and the node has not resumed yet.
    Awaited,
    /// The node has not joined.
    Missing,
    /// The node takes no job, and is drained once its present job has ended and its memory of regions has
    /// moved to other nodes.
    Draining {
        /// The circumstances.
        why: Withdrawal,
        /// The remaining time after which the job is cancelled, in milliseconds; `None`: it is not.
        left_ms: Option<u64>,
        /// The reason for which the node's memory of regions has not moved to other nodes.
        held: Option<Reason>,
    },
    /// The node takes no job, and has neither a job nor memory of regions.
    Drained(Withdrawal),
    /// A rollout replaces the node's image.
    Upgrading {
        /// The circumstances.
        why: Withdrawal,
        /// The reason for which the node's memory of regions has not moved to other nodes.
        held: Option<Reason>,
    },
    /// The node takes no job, because it has failed a check.
    Failed(Withdrawal),
    /// The node's machine was turned off.
    Off(Withdrawal),
}

impl NodeStanding {
    /// Returns the state as one word, for people.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Silent => "silent",
            Self::Awaited => "awaited",
            Self::Missing => "missing",
            Self::Draining { .. } => "draining",
            Self::Drained(_) => "drained",
            Self::Upgrading { .. } => "upgrading",
            Self::Failed(_) => "failed",
            Self::Off(_) => "off",
        }
    }

    /// Returns the circumstances of a node that is out of service.
    #[must_use]
    pub const fn withdrawal(&self) -> Option<&Withdrawal> {
        match self {
            Self::Ready | Self::Silent | Self::Awaited | Self::Missing => None,
            Self::Draining { why, .. }
            | Self::Drained(why)
            | Self::Upgrading { why, .. }
            | Self::Failed(why)
            | Self::Off(why) => Some(why),
        }
    }

    /// Returns the reason for which a node that leaves its service still has memory of regions.
    #[must_use]
    pub const fn held(&self) -> Option<&Reason> {
        match self {
            Self::Draining { held, .. } | Self::Upgrading { held, .. } => held.as_ref(),
            _ => None,
        }
    }

    /// Returns the reason for which a node in this state takes no job, for people; `None` for `Ready`.
    #[must_use]
    pub fn objection(&self) -> Option<Reason> {
        let with = |word: &str, why: &Withdrawal| {
            let by = format!("{word} by {}", why.who);
            if why.reason.is_empty() { by } else { format!("{by}: {}", why.reason) }
        };
        match self {
            Self::Ready => None,
            Self::Silent | Self::Awaited | Self::Missing => Some(self.word().to_string()),
            Self::Draining { why, .. } | Self::Drained(why) => Some(with("drained", why)),
            Self::Upgrading { why, .. } => Some(with("upgraded", why)),
            Self::Failed(why) => Some(format!("failed: {}", why.reason)),
            Self::Off(why) => Some(with("turned off", why)),
        }
    }
}

/// The image that a node runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningImage {
    /// The digest of the running kernel's code and constants, which the kernel has computed from its memory.
    pub kernel: [u8; 32],
    /// The version of the build, for people.
    pub version: String,
}

/// A node as the command line shows it: a member, or one that is out of service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// The node's name.
    pub name: String,
    /// The state.
    pub standing: NodeStanding,
    /// The member; `None` if the node has not joined.
    pub member: Option<NodeStatus>,
    /// The job in which the node takes part.
    pub job: Option<JobId>,
    /// The image that the node runs, if it has told it.
    pub image: Option<RunningImage>,
}
