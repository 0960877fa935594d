//! Messages between a client (command line, dashboard) and the manager.

use crate::{AppManifest, BootReport, InputFile, JobId, JobReport, NodeId, Reason};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// From a client to the manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromClient {
    /// Lists the nodes, a page of them. Answered by [`ToClient::Nodes`].
    Nodes {
        /// The page begins behind this node; `NodeId(0)` for the first page.
        after: NodeId,
    },
    /// Waits until that many nodes are members. Answered by the first page of [`ToClient::Nodes`], or `Failed` after the
    /// time. A connection may have one wait at a time.
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
        /// Milliseconds that the job may take from when its nodes are told of it; then it fails. `None`: no limit.
        limit_ms: Option<u64>,
    },
    /// The next bytes of input, at most 48 KiB, of one file. No bytes at all are no sign of life.
    Input {
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Has all nodes leave and power off. Answered by `Done` of no job when all have left.
    Shutdown,
    /// Lists the jobs. Answered by [`ToClient::Jobs`].
    Jobs,
    /// Ends a job of any client. Answered by [`ToClient::Cancelled`], or `Failed` if no such job is under way.
    Cancel {
        /// The job.
        job: JobId,
    },
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobPhase {
    /// Its nodes have been asked.
    Starting,
    /// Its input comes.
    Loading,
    /// Its nodes compute.
    Running,
    /// It has failed or was cancelled, and some nodes have not ended their part yet.
    Ending,
}

/// A job as the command line shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its number.
    pub job: JobId,
    /// The application.
    pub app: String,
    /// Its nodes by rank; of a job that is ending, those whose part is not over. A node is in one job at most, so all
    /// jobs together have no more than the cluster.
    pub nodes: Vec<NodeId>,
    /// How far it is.
    pub phase: JobPhase,
    /// Milliseconds since its nodes were asked.
    pub age_ms: u64,
    /// Milliseconds that it has been that far.
    pub phase_ms: u64,
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
    /// Members by id, a page of them.
    Nodes {
        /// The page.
        nodes: Vec<NodeStatus>,
        /// Whether others come behind the last of them.
        more: bool,
    },
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
    /// The job is done; all output and the report of each node have been sent.
    Done {
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
    /// A node has done its part of the job.
    Report {
        /// The node.
        node: NodeId,
        /// What it has to say of it.
        report: JobReport,
    },
    /// The jobs under way by number, those that are ending included.
    Jobs(Vec<JobStatus>),
    /// The job was told to end; its nodes are idle again when they have ended their part.
    Cancelled {
        /// The job.
        job: JobId,
    },
}
