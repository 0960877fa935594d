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
    /// The node's names take [`NAME_QUOTA`](ToManager::NAME_QUOTA) bytes already.
    #[error("this node has bound as many names as one node may")]
    Quota,
    /// The manager has no number for the binding, because its disk is slow or full.
    #[error("the manager waits for its disk: try again")]
    Unsaved,
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
        /// What it does now: `load`, `map`, `shuffle`, `reduce`, `merge`. The manager passes on at most
        /// [`MAX_PHASE`](ToManager::MAX_PHASE) bytes of it, and not every message of a node that sends many.
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
    /// The node has done its part, and nothing of it is left on the node.
    JobDone {
        /// The job.
        job: JobId,
        /// What it has to say of it.
        report: JobReport,
    },
    /// The node cannot take or finish its part, of which nothing is left on the node; the job has failed.
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
    /// How much input of a job the node is ready to take. The manager sends no more than that, so input never stands in a
    /// connection before what the node has to hear in time. Sent after [`JobAccepted`](Self::JobAccepted), and again as the
    /// node takes input in.
    JobInputCredit {
        /// The job.
        job: JobId,
        /// The sum of the [charges](ToNode::input_charge) of all [`ToNode::JobInput`] of this job, from the first one on, those
        /// that came already included. It never falls, and is at most [`MAX_CREDIT`](Self::MAX_CREDIT) above the sum that the
        /// manager has sent.
        bytes: u64,
    },
    /// The node's part of a job that was cancelled is over: nothing of it is left on the node. The answer to
    /// [`ToNode::JobCancel`], also for a job that the node does not know any more.
    JobOver {
        /// The job.
        job: JobId,
    },
}

impl ToManager {
    /// Bytes of output that may be under way before an acknowledgement.
    pub const OUTPUT_WINDOW: usize = 1 << 20;
    /// The most input that a node may be ready to take at once, in charges.
    pub const MAX_CREDIT: u64 = 16 << 20;
    /// Bytes that the names of a node may take: for each its own bytes, those of its value, and
    /// [`NAME_COST`](Self::NAME_COST).
    pub const NAME_QUOTA: usize = 1 << 20;
    /// Bytes that a name counts for beside its own and its value's.
    pub const NAME_COST: usize = 64;
    /// Bytes of the longest phase in a progress message that is passed on.
    pub const MAX_PHASE: usize = 32;
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
    /// A piece of this node's input. Within the node's [credit](ToManager::JobInputCredit).
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
    /// The job has failed or was given up: free what it holds. Answered by [`ToManager::JobOver`], unless the node has said
    /// [`ToManager::JobDone`] or [`ToManager::JobFailed`] already; until then the node gets no other job.
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
    /// What a [`JobInput`](Self::JobInput) counts for at least, so that single bytes are not free of charge.
    pub const MIN_CHARGE: u64 = 512;
    /// How much input an appliance or `lite-node` is ready to take at once, in charges. It covers the way there and back at
    /// 10 Gbit/s for 0.8 ms, and is 2 s of a link of 500 kB/s.
    pub const INPUT_WINDOW: u64 = 1 << 20;

    /// What a [`JobInput`](Self::JobInput) with so many bytes takes off the node's credit: its bytes, and no less than
    /// [`MIN_CHARGE`](Self::MIN_CHARGE).
    #[must_use]
    pub fn input_charge(bytes: usize) -> u64 {
        (bytes as u64).max(Self::MIN_CHARGE)
    }
}
