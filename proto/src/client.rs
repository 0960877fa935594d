//! Messages between a client (command line, dashboard) and the manager.

use crate::{AppManifest, BootReport, InputFile, JobId, JobReport, NodeId, Reason};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// From a client to the manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromClient {
    /// Lists the nodes. Answered by [`ToClient::Nodes`].
    Nodes,
    /// Waits until that many nodes are members. Answered by [`ToClient::Nodes`], or `Failed` after the time.
    WaitNodes {
        /// How many.
        count: u16,
        /// Milliseconds to wait.
        timeout_ms: u64,
    },
    /// Runs a job. Answered by `Accepted` or `Failed`; after `Accepted` the client sends the files in order as `Input`,
    /// as many bytes as it announced.
    Submit {
        /// The application.
        app: String,
        /// Its arguments.
        args: Vec<String>,
        /// How many nodes, 0 for all.
        nodes: u16,
        /// The names of the nodes, by rank; empty: any. `nodes` is not asked for then.
        on: Vec<String>,
        /// The files.
        inputs: Vec<InputFile>,
    },
    /// The next bytes of input, at most 48 KiB, of one file.
    Input {
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Has all nodes leave and power off. Answered by `Done` of no job when all have left.
    Shutdown,
}

/// A member as the command line shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its id.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Driver and port of its RNIC, for people.
    pub rnic: String,
    /// Bytes of memory.
    pub memory: u64,
    /// Processors.
    pub cpus: u16,
    /// Its applications.
    pub apps: Vec<AppManifest>,
    /// How it came up.
    pub boot: BootReport,
    /// Milliseconds since its last heartbeat.
    pub heartbeat_age_ms: u64,
}

/// From the manager to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToClient {
    /// The client may go on.
    Hello,
    /// The members.
    Nodes(Vec<NodeStatus>),
    /// The job runs.
    Accepted {
        /// Its number.
        job: JobId,
        /// The nodes by rank.
        nodes: Vec<NodeId>,
    },
    /// How far a node is.
    Progress {
        /// The node.
        node: NodeId,
        /// What it does now.
        phase: String,
        /// Done, in units of the phase.
        done: u64,
        /// Of how many.
        total: u64,
    },
    /// The next bytes of output.
    Output {
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The job is done; all output has been sent.
    Done {
        /// What each node says, by rank.
        reports: Vec<(NodeId, JobReport)>,
        /// Microseconds from the last byte of input sent to the nodes until the last node was done.
        run_us: u64,
        /// Microseconds from the first byte of input to the last.
        stream_us: u64,
    },
    /// The request was refused or the job failed, and the connection ends.
    Failed {
        /// Why; names the node if one is at fault.
        reason: Reason,
    },
}
