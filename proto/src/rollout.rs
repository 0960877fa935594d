//! Images that the manager keeps, and rollouts of them.

use crate::Reason;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// An image that the manager keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// The SHA-256 of the file.
    pub sha256: [u8; 32],
    /// The length, in bytes.
    pub len: u64,
    /// The digest that the image's kernel computes of itself when it runs.
    pub kernel: [u8; 32],
    /// The version, as the client has named it.
    pub version: String,
    /// The commit, as the client has named it.
    pub commit: String,
}

impl ImageInfo {
    /// The maximum length of a version or a commit, in bytes.
    pub const MAX_TEXT: usize = 64;
}

/// The options of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutPlan {
    /// The SHA-256 of the image.
    pub image: [u8; 32],
    /// The names of the nodes; empty for all machines that have joined.
    pub nodes: Vec<String>,
    /// The number of nodes that must have succeeded before any other begins.
    pub canary: u16,
    /// The maximum number of nodes that are out of service for the rollout at a time.
    pub max_unavailable: u16,
    /// The time in which a node must have joined with the image, and the time in which it must have answered
    /// the check, in milliseconds.
    pub within_ms: u64,
}

/// The progress of a node in a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeStep {
    /// The node runs its former image, and takes jobs.
    Waiting,
    /// The node's job may end.
    Draining,
    /// The node boots the image.
    Booting,
    /// The node runs the image, and checks its connections.
    Checking,
    /// The node runs the image, and takes jobs.
    Done,
    /// The node has failed, and boots its former image.
    Returning(Reason),
    /// The node runs its former image again, and checks its connections.
    CheckingFormer(Reason),
    /// The node has failed. It runs its former image again, and takes jobs.
    Returned(Reason),
    /// The node has failed, and did not come back with its former image.
    Lost(Reason),
}

impl NodeStep {
    /// Returns the step as one word, for people.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Draining => "draining",
            Self::Booting => "booting",
            Self::Checking => "checking",
            Self::Done => "done",
            Self::Returning(_) => "returning",
            Self::CheckingFormer(_) => "checking-former",
            Self::Returned(_) => "returned",
            Self::Lost(_) => "lost",
        }
    }

    /// Returns the reason for which the node has failed.
    #[must_use]
    pub const fn reason(&self) -> Option<&Reason> {
        match self {
            Self::Returning(why) | Self::CheckingFormer(why) | Self::Returned(why) | Self::Lost(why) => {
                Some(why)
            }
            _ => None,
        }
    }

    /// Returns true while the rollout keeps the node out of service and has something left to do with it.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        matches!(
            self,
            Self::Draining | Self::Booting | Self::Checking | Self::Returning(_) | Self::CheckingFormer(_)
        )
    }
}

/// The state of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RolloutState {
    /// More nodes follow.
    Running,
    /// A client has stopped it: no more nodes begin.
    Stopped(Reason),
    /// A node has failed: no more nodes begin.
    Failed(Reason),
    /// All nodes run the image.
    Done,
}

impl RolloutState {
    /// Returns the state as one word, for people.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped(_) => "stopped",
            Self::Failed(_) => "failed",
            Self::Done => "done",
        }
    }

    /// Returns the reason for which no more nodes begin.
    #[must_use]
    pub const fn reason(&self) -> Option<&Reason> {
        match self {
            Self::Running | Self::Done => None,
            Self::Stopped(why) | Self::Failed(why) => Some(why),
        }
    }
}

/// A rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutStatus {
    /// The number of the rollout.
    pub number: u64,
    /// The options.
    pub plan: RolloutPlan,
    /// The client that has started it.
    pub who: String,
    /// The state.
    pub state: RolloutState,
    /// The nodes in their order, with the SHA-256 of their former images.
    pub nodes: Vec<(String, [u8; 32], NodeStep)>,
}
