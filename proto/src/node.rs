//! Messages between a node and the manager, after the join.

use crate::{Incarnation, JobId, JobReport, JobStart, Member, NodeId, Reason, Welcome};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Bytes of the longest name in the directory.
pub const MAX_NAME: usize = 256;
/// Bytes of the longest value there.
pub const MAX_VALUE: usize = 1024;

/// Whether the directory takes a name with that value.
///
/// # Errors
/// [`NameError::Length`].
pub fn check_lengths(name: &str, value: &[u8]) -> Result<(), NameError> {
    if (1..=MAX_NAME).contains(&name.len()) && value.len() <= MAX_VALUE {
        Ok(())
    } else {
        Err(NameError::Length)
    }
}

/// Why a request to the name directory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NameError {
    /// Nothing is bound to the name.
    #[error("no such name")]
    NotFound,
    /// The name is bound already.
    #[error("the name is taken")]
    Taken,
    /// The name is bound by another node.
    #[error("the name belongs to another node")]
    NotOwner,
    /// The name is empty or longer than [`MAX_NAME`], or the value longer than [`MAX_VALUE`].
    #[error("name or value of a forbidden length")]
    Length,
}

/// From a node to the manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToManager {
    /// Renews the lease. Sent by the platform's poller, also while applications compute.
    Heartbeat {
        /// Counts up.
        seq: u64,
    },
    /// A message for another member, which the manager passes on unread: connection set-up.
    Relay {
        /// The receiver.
        to: NodeId,
        /// Which life of it; in another the message is dropped.
        incarnation: Incarnation,
        /// The message, at most 4096 bytes.
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
    /// Binds a name to this node. Answered by [`ToNode::Name`] with an empty value.
    NameBind {
        /// Chosen by the node, given back in the answer.
        request: u32,
        /// The name.
        name: String,
        /// What is bound to it, at most 1024 bytes.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Frees a name that this node has bound. Names of a node that leaves or dies are freed by the manager.
    NameUnbind {
        /// As above.
        request: u32,
        /// The name.
        name: String,
    },
    /// Asks for what is bound to a name.
    NameLookup {
        /// As above.
        request: u32,
        /// The name.
        name: String,
    },
    /// The node takes its part in a job and waits for input.
    JobAccepted {
        /// The job.
        job: JobId,
    },
    /// How far the node is.
    JobProgress {
        /// The job.
        job: JobId,
        /// What it does now: `load`, `map`, `shuffle`, `reduce`, `merge`.
        phase: String,
        /// Done, in units of the phase.
        done: u64,
        /// Of how many.
        total: u64,
    },
    /// The next bytes of the job's output. Only rank 0 has output. At most
    /// [`OUTPUT_WINDOW`](Self::OUTPUT_WINDOW) bytes may be unacknowledged.
    JobOutput {
        /// The job.
        job: JobId,
        /// The bytes, at most 64 KiB.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The node has done its part.
    JobDone {
        /// The job.
        job: JobId,
        /// What it has to say of it.
        report: JobReport,
    },
    /// The node cannot take or finish its part; the job has failed.
    JobFailed {
        /// The job.
        job: JobId,
        /// Why.
        reason: Reason,
    },
    /// The node leaves in good order.
    Leave,
    /// The node dies: panic, fault, exhausted memory.
    LastWords {
        /// Why.
        reason: Reason,
    },
    /// The node has heard that a life has ended and destroyed its queue pairs to it.
    LeftSeen {
        /// Whose life.
        node: NodeId,
        /// Which.
        incarnation: Incarnation,
    },
    /// How much memory the node has free for regions. Sent when it has changed much.
    MemoryFree {
        /// Bytes.
        bytes: u64,
    },
    /// Asks which members have the most memory free. Answered by [`ToNode::MemoryFree`].
    AskMemoryFree {
        /// Chosen by the node, given back in the answer.
        request: u32,
    },
}

impl ToManager {
    /// Bytes of output that may be under way before an acknowledgement.
    pub const OUTPUT_WINDOW: usize = 1 << 20;
}

/// From the manager to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToNode {
    /// The node is a member.
    Welcome(Welcome),
    /// It is not, and the connection ends.
    Refused {
        /// Why.
        reason: Reason,
    },
    /// The lease runs anew from the sending of heartbeat `seq`.
    HeartbeatAck {
        /// The heartbeat's number.
        seq: u64,
    },
    /// A new member.
    Joined(Member),
    /// A member has left or is declared dead; its former life will not act again.
    Left {
        /// Its id.
        node: NodeId,
        /// Its life.
        incarnation: Incarnation,
        /// Why: `left`, `lease expired`, `connection lost`, or its last words.
        reason: Reason,
    },
    /// A message of another member.
    Relayed {
        /// The sender.
        from: NodeId,
        /// Its life.
        incarnation: Incarnation,
        /// The message.
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
    /// The answer to a request to the name directory.
    Name {
        /// The request's number.
        request: u32,
        /// The node that has bound the name, and the value. For bind, the value is the number of the binding, 8 bytes, little
        /// end first: larger than those of all bindings before, over restarts of the manager. For unbind it is empty.
        result: Result<(NodeId, Vec<u8>), NameError>,
    },
    /// Take part in a job. Answered by [`ToManager::JobAccepted`] or [`ToManager::JobFailed`].
    JobStart(JobStart),
    /// A piece of this node's input.
    JobInput {
        /// The job.
        job: JobId,
        /// Index of the file in [`JobStart::inputs`].
        file: u32,
        /// Where in the file the first byte stands.
        offset: u64,
        /// The bytes, at most 48 KiB: the next of the split.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// Whether the split ends here; the next piece starts a new one.
        end_of_split: bool,
    },
    /// All input has been sent to all nodes: begin.
    JobInputEnd {
        /// The job.
        job: JobId,
    },
    /// That much output has been passed on.
    JobOutputAck {
        /// The job.
        job: JobId,
        /// Bytes.
        bytes: u64,
    },
    /// The job has failed or was given up: free what it holds. Needs no answer.
    JobCancel {
        /// The job.
        job: JobId,
        /// Why.
        reason: Reason,
    },
    /// Leave the cluster and power off.
    Shutdown,
    /// All who were members when that life ended have seen it: nothing of it reaches anybody any more.
    Settled {
        /// Whose life.
        node: NodeId,
        /// Which.
        incarnation: Incarnation,
    },
    /// The members with the most free memory.
    MemoryFree {
        /// The request's number.
        request: u32,
        /// Node and bytes, the most first; at most [`MOST_FREE`](Self::MOST_FREE).
        nodes: Vec<(NodeId, u64)>,
    },
}

impl ToNode {
    /// Members in one [`ToNode::MemoryFree`].
    pub const MOST_FREE: usize = 256;
}
