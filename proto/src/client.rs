//! Messages between a client (command line, dashboard) and the manager.

use crate::{
    AppManifest, AuditEntry, BootImage, BootReport, DatasetStatus, ImageInfo, Incarnation, InventoryNode,
    JobDetails, JobId, JobInfo, JobQos, JobReport, JobRequest, NodeId, NodeStanding, NodeView, PowerAction,
    PowerVerb, Reason, RolloutPlan, RolloutStatus, Terms, UserRole, UserStatus,
};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// From a client to the manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromClient {
    /// Lists the nodes, one page of them. The answer is [`ToClient::Nodes`].
    Nodes {
        /// The page begins after this node id; `NodeId(0)` for the first page.
        after: NodeId,
    },
    /// Waits until `count` nodes are members. The answer is the first page of [`ToClient::Nodes`], or
    /// `Failed` after the timeout. A connection may have one wait at a time.
    WaitNodes {
        /// The number of nodes.
        count: u16,
        /// The timeout, in milliseconds.
        timeout_ms: u64,
    },
    /// Runs a job. The answer is `Accepted` or `Failed`. After `Accepted` the client sends the files, in
    /// order, as `Input`, each with the length that it announced.
    Submit(JobRequest),
    /// The next bytes of one input file, at most 48 KiB. An empty message does not count as a sign that the
    /// client is alive.
    Input {
        /// The job's present number. Input for a number that the job had before is ignored.
        job: JobId,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Makes all nodes leave and power off. The answer is `Done` without a job, when all have left.
    Shutdown,
    /// Lists the jobs. The answer is [`ToClient::Jobs`].
    Jobs,
    /// Cancels a job of any client. The answer is [`ToClient::Cancelled`], or `Failed` if no such job is
    /// running.
    Cancel {
        /// The job.
        job: JobId,
    },
    /// Lists the datasets. The answer is [`ToClient::Datasets`].
    Datasets,
    /// Frees a dataset. The answer is [`ToClient::Dropped`], or `Failed` if there is no such dataset or a job
    /// reads it.
    DropDataset {
        /// The name.
        name: String,
    },
    /// Turns the machine of a node off, or resets it. The answer is [`ToClient::NodeLeft`] once the node has
    /// left, or `Failed`.
    Power {
        /// The name of the node.
        node: String,
        /// The change of its machine's power.
        action: PowerAction,
    },
    /// Boots an image on the machine of a node. The answer is [`ToClient::ImageTaken`] or `Failed`.
    /// The client then sends the image in [pieces](Self::ImagePiece). The last answer is
    /// [`ToClient::NodeLeft`] once the node has left, or `Failed`.
    Boot {
        /// The name of the node.
        node: String,
        /// The image.
        image: BootImage,
    },
    /// The next bytes of an image, at most [`BootImage::PIECE`], and within [`BootImage::WINDOW`].
    ImagePiece {
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Goes on with a job whose connection has ended with the manager's process. The answers are those that
    /// the job has not given yet; `Accepted` means that the job starts again.
    Attach {
        /// The job.
        job: JobId,
        /// The number of bytes of output that the client has.
        output: u64,
    },
    /// Acknowledges output.
    OutputTaken {
        /// The number of bytes that the client has, from the beginning of the output.
        bytes: u64,
    },
    /// Asks for everything that helps to find a fault. The answer is [`ToClient::Support`].
    Support,
    /// Reads the manager's state. The answers are [`ToClient::Backup`], or `Failed`.
    Backup,
    /// Lists all nodes with their states, one page of them. The answer is [`ToClient::NodeList`].
    NodeList {
        /// The page begins after this name; empty for the first page.
        after: String,
    },
    /// Takes a node out of service: it takes no more jobs, and its present one may end. The answer is
    /// [`ToClient::NodeChanged`] or `Failed`.
    Drain {
        /// The name of the node.
        node: String,
        /// The reason, at most [`MAX_REASON`](crate::Withdrawal::MAX_REASON) bytes.
        reason: Reason,
        /// The time after which the node's job is cancelled, in milliseconds; `None`: the job may take as
        /// long as it does.
        deadline_ms: Option<u64>,
        /// True if the node may be the last one that takes jobs.
        force: bool,
    },
    /// Puts a node back into service. The answer is [`ToClient::NodeChanged`] or `Failed`.
    Undrain {
        /// The name of the node.
        node: String,
    },
    /// Keeps an image. The answer is [`ToClient::ImageTaken`] or `Failed`. The client then sends the image in
    /// [pieces](Self::ImagePiece). The last answer is [`ToClient::ImageAdded`] or `Failed`.
    ImageAdd {
        /// The image.
        image: BootImage,
        /// The version, at most [`MAX_TEXT`](ImageInfo::MAX_TEXT) bytes.
        version: String,
        /// The commit, at most [`MAX_TEXT`](ImageInfo::MAX_TEXT) bytes.
        commit: String,
    },
    /// Lists the images. The answer is [`ToClient::Images`].
    Images,
    /// Removes an image. The answer is [`ToClient::ImageRemoved`], or `Failed` if a rollout needs it.
    ImageRemove {
        /// The SHA-256 of the image.
        image: [u8; 32],
    },
    /// Starts a rollout. The answer is [`ToClient::Rollout`] or `Failed`.
    RolloutStart(RolloutPlan),
    /// Asks for the last rollout. The answer is [`ToClient::Rollout`].
    Rollout,
    /// Lets no more nodes begin the rollout. The answer is [`ToClient::Rollout`] or `Failed`.
    RolloutStop,
    /// Starts a rollout of the former image on the nodes that the last one has changed. The answer is
    /// [`ToClient::Rollout`] or `Failed`.
    RolloutUndo,
    /// Asks for the name and the role of the asker. The answer is [`ToClient::You`].
    WhoAmI,
    /// Lists the users. The answer is [`ToClient::Users`].
    Users,
    /// Adds a user. The answer is [`ToClient::UserChanged`] or `Failed`.
    AddUser(UserStatus),
    /// Removes a user, and ends the user's connections. The answer is [`ToClient::UserChanged`], or
    /// `Refused` if there is no such user.
    RemoveUser {
        /// The name.
        name: String,
    },
    /// Changes the role of a user. The answer is [`ToClient::UserChanged`], or `Refused` if there is no such
    /// user.
    SetUserRole {
        /// The name.
        name: String,
        /// The new role.
        role: UserRole,
    },
    /// Lists the audit log, one page of it. The answer is [`ToClient::Audit`].
    Audit {
        /// The page begins after the entry of this number; 0 for the first page.
        after: u64,
    },
    /// Does the same as [`Submit`](Self::Submit), on terms. A job that waits is told to be
    /// [queued](ToClient::Queued) first, and whenever the reason changes. A job without a client is
    /// acknowledged by [`ToClient::Submitted`], after [`ToClient::InputWanted`] if it has input, and its
    /// connection has no more to do with it.
    SubmitOn {
        /// The job.
        request: JobRequest,
        /// The terms.
        terms: Terms,
    },
    /// Lists jobs by number, one page of them. The answer is [`ToClient::JobList`].
    JobList {
        /// The page begins after this job; `JobId(0)` for the first page.
        after: JobId,
        /// True to list the jobs that have ended as well.
        ended: bool,
    },
    /// Asks for all that is known of a job. The answer is [`ToClient::JobShown`], or `Failed`.
    JobShow {
        /// The job.
        job: JobId,
    },
    /// Waits until a job has ended. The answer is [`ToClient::JobShown`], or `Failed` if there is no such job
    /// or the timeout has passed. A connection may have one such wait at a time.
    JobWait {
        /// The job.
        job: JobId,
        /// The timeout, in milliseconds.
        timeout_ms: u64,
    },
    /// Fetches output of a job without a client. The answer is [`ToClient::JobOutput`], or
    /// [`ToClient::JobShown`] if the manager has none. A connection may have one such request at a time.
    JobOutput {
        /// The job.
        job: JobId,
        /// The position of the first byte.
        offset: u64,
    },
    /// Reads the lines that the nodes of a job have logged during its time. The answer is
    /// [`ToClient::JobLog`], or [`ToClient::JobShown`] if the manager does not keep them any longer.
    JobLog {
        /// The job.
        job: JobId,
        /// The position of the first byte.
        offset: u64,
    },
    /// Does something by the power controller of a node's machine. The answer is [`ToClient::Powered`] or
    /// `Failed`.
    Bmc {
        /// The name of the node.
        node: String,
        /// The change of the power, or the look at it.
        verb: PowerVerb,
        /// True if it is done also while the node answers or takes part in a job.
        force: bool,
    },
    /// Compares the manager's inventory with the nodes that are there, one page of it. The answer is
    /// [`ToClient::Inventory`].
    Inventory {
        /// The page begins after this name; empty for the first page.
        after: String,
    },
    /// Does the same as [`SubmitOn`](Self::SubmitOn) for a job that asks for a quality of service.
    SubmitWith {
        /// The job.
        request: JobRequest,
        /// The terms.
        terms: Terms,
        /// The quality of service.
        qos: JobQos,
    },
}

/// The progress of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobPhase {
    /// The nodes have been sent the start message and have not all accepted.
    Starting,
    /// The input is being sent to the nodes.
    Loading,
    /// The nodes compute.
    Running,
    /// The job has failed or was cancelled, and some nodes have not ended their part yet.
    Ending,
}

/// A job as the command line shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The job's number.
    pub job: JobId,
    /// The application.
    pub app: String,
    /// The nodes by rank; for a job that is ending, those that have not ended their part. A node is in at
    /// most one job, so all jobs together have no more nodes than the cluster.
    pub nodes: Vec<NodeId>,
    /// The phase of the job.
    pub phase: JobPhase,
    /// The time since the start message to the nodes, in milliseconds.
    pub age_ms: u64,
    /// The time since the phase began, in milliseconds.
    pub phase_ms: u64,
}

/// The state of a member's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeState {
    /// The node is connected.
    Ready,
    /// The node's connection has ended. The node is dead when its lease ends, unless it resumes.
    Silent,
    /// The manager has started since the node joined, and the node has not resumed yet.
    Awaited,
}

impl NodeState {
    /// Returns the state as one word, for people.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Silent => "silent",
            Self::Awaited => "awaited",
        }
    }
}

/// A member as the command line shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node's id.
    pub node: NodeId,
    /// The node's name.
    pub name: String,
    /// Driver and port of the RNIC, as text for users.
    pub rnic: String,
    /// The node's memory, in bytes.
    pub memory: u64,
    /// The number of processors.
    pub cpus: u16,
    /// The applications of the node.
    pub apps: Vec<AppManifest>,
    /// The duration of the boot, by stage.
    pub boot: BootReport,
    /// The time since the last heartbeat, in milliseconds.
    pub heartbeat_age_ms: u64,
    /// The node's incarnation.
    pub incarnation: Incarnation,
    /// The [number](crate::Join::boot_id) of the machine's boot.
    pub boot_id: u64,
    /// The state of the node's connection.
    pub state: NodeState,
}

/// From the manager to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToClient {
    /// The handshake is complete, and the client may send requests.
    Hello,
    /// A page of the list of members, in the order of their ids.
    Nodes {
        /// The members of the page.
        nodes: Vec<NodeStatus>,
        /// True if members with larger ids follow on another page.
        more: bool,
    },
    /// The job has started, or starts again because the manager was restarted while input came: then the
    /// client sends its input again, and what came of the job before is void.
    Accepted {
        /// The job's number.
        job: JobId,
        /// The nodes by rank.
        nodes: Vec<NodeId>,
    },
    /// The progress of a node.
    Progress {
        /// The node.
        node: NodeId,
        /// The current phase.
        phase: String,
        /// The amount done, in units of the phase.
        done: u64,
        /// The total amount, in units of the phase.
        total: u64,
    },
    /// The next bytes of the output.
    Output {
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The job is complete. All output and the report of each node have been sent.
    Done {
        /// The time from the last byte of input sent to the nodes until the last node was done, in
        /// microseconds.
        run_us: u64,
        /// The time from the first byte of input to the last, in microseconds.
        stream_us: u64,
    },
    /// The request was refused or the job failed. The connection ends.
    Failed {
        /// The reason, which names the node if one node is the cause.
        reason: Reason,
    },
    /// A node has completed its part of the job.
    Report {
        /// The node.
        node: NodeId,
        /// The node's report.
        report: JobReport,
    },
    /// The present jobs, by number, including those that are ending.
    Jobs(Vec<JobStatus>),
    /// The job was told to end. Its nodes are idle when they have ended their part.
    Cancelled {
        /// The job.
        job: JobId,
    },
    /// The datasets, by name.
    Datasets(Vec<DatasetStatus>),
    /// The nodes were told to free the dataset. Its name is free.
    Dropped {
        /// The name.
        name: String,
    },
    /// The node has taken the first bytes of the image.
    ImageTaken {
        /// The number of these bytes.
        bytes: u64,
    },
    /// The node has left, and its machine obeys the order.
    NodeLeft,
    /// The request was refused, for a reason that programs tell from others. The connection ends.
    Refused {
        /// The kind of the refusal.
        kind: Refusal,
        /// The reason, for people.
        reason: Reason,
    },
    /// The next bytes of a report that helps to find a fault: one JSON object, without keys.
    Support {
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// True if others follow.
        more: bool,
    },
    /// The next bytes of the manager's state.
    Backup {
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// True if others follow.
        more: bool,
    },
    /// A page of the list of all nodes, in the order of their names.
    NodeList {
        /// The nodes of the page.
        nodes: Vec<NodeView>,
        /// True if nodes with larger names follow on another page.
        more: bool,
    },
    /// The node is in another state.
    NodeChanged {
        /// The state.
        standing: NodeStanding,
    },
    /// The image is kept.
    ImageAdded(ImageInfo),
    /// The images, by their SHA-256.
    Images(Vec<ImageInfo>),
    /// The image is gone.
    ImageRemoved,
    /// The last rollout, if there was one.
    Rollout(Option<RolloutStatus>),
    /// The asker, as the manager knows it.
    You {
        /// The name of the user; empty for a peer with the cluster's key for clients alone.
        name: String,
        /// The role.
        role: UserRole,
    },
    /// The users, by name.
    Users(Vec<UserStatus>),
    /// The change of a user is saved.
    UserChanged,
    /// A page of the audit log, in order.
    Audit {
        /// The entries of the page.
        entries: Vec<AuditEntry>,
        /// True if later entries follow on another page.
        more: bool,
    },
    /// The job waits in the queue.
    Queued {
        /// The number of the job.
        job: JobId,
        /// The reason why it does not start.
        reason: Reason,
    },
    /// The job without a client is recorded.
    Submitted {
        /// The number of the job.
        job: JobId,
    },
    /// A page of the list of jobs, by number.
    JobList {
        /// The jobs.
        jobs: Vec<JobInfo>,
        /// True if more jobs follow on another page.
        more: bool,
    },
    /// A job.
    JobShown(Box<JobDetails>),
    /// The job without a client is accepted: the client sends its files, in order, as
    /// [`FromClient::Input`]. [`Submitted`](Self::Submitted) follows once the manager has stored all.
    InputWanted {
        /// The number of the job.
        job: JobId,
    },
    /// The next bytes of a job's output; none if there are no more at present.
    JobOutput {
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// True if the output ends after these bytes.
        whole: bool,
    },
    /// The next bytes of the log of a job, in lines; none if there are no more at present.
    JobLog {
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// True if more lines may come.
        open: bool,
    },
    /// The power of a machine, as its power controller tells it.
    Powered {
        /// True if it is on.
        on: bool,
    },
    /// A page of the inventory, in the order of the names.
    Inventory {
        /// The nodes of the page.
        nodes: Vec<InventoryNode>,
        /// True if nodes with larger names follow on another page.
        more: bool,
    },
    /// Does the same as [`JobShown`](Self::JobShown) for a job with a quality of service (version 11).
    JobShownWith {
        /// All that is known of the job.
        details: Box<JobDetails>,
        /// The quality of service.
        qos: JobQos,
    },
}

impl ToClient {
    /// Returns [`JobShownWith`](Self::JobShownWith) as [`JobShown`](Self::JobShown) with the quality of
    /// service among the details, and all other messages as they are.
    #[must_use]
    pub fn with_whole_details(self) -> Self {
        match self {
            Self::JobShownWith { details, qos } => Self::JobShown(Box::new(JobDetails { qos, ..*details })),
            other => other,
        }
    }
}

/// The kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The client may not do this.
    Denied,
    /// There is no job, node or dataset of that name.
    NotFound,
    /// The time that the client has set is over.
    TimedOut,
}
