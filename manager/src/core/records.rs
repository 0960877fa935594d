//! The state that survives a restart of the manager, as records: what a manager stores before it tells
//! anybody, and what it finds when it starts.

use super::images::KeptImage;
use super::service::WithdrawnRecord;
use super::spool::FoundFile;
use proto::{
    AuditEntry, Incarnation, InputFile, JobEnd, JobId, JobQos, JobReport, JobRequest, Join, NodeId,
    RolloutStatus, Terms, UserStatus, VouchingSecret,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use verbs::Gid;

/// The state that a manager finds when it starts. From both counters on, [`RESERVED`](Self::RESERVED) numbers
/// are reserved for this process: the store has already saved [`reservation`](Self::reservation).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The id of each node that has joined and wanted to keep its id.
    pub nodes: Vec<(String, NodeId)>,
    /// The first incarnation that was never used.
    pub next_incarnation: u64,
    /// The first job number that was never used.
    pub next_job: u64,
    /// The number of the last process of the manager that has used this state.
    pub epoch: u64,
    /// A time that the clock of no former process has reached, in nanoseconds.
    pub clock: u64,
    /// The secret of the cluster's vouchers and memberships; `None` before the first start.
    pub secret: Option<VouchingSecret>,
    /// The members.
    pub members: Vec<MemberRecord>,
    /// The ended incarnations that not all members have confirmed.
    pub departures: Vec<(NodeId, Incarnation)>,
    /// The bound names.
    pub names: Vec<NameRecord>,
    /// The jobs that a client waits for.
    pub jobs: Vec<JobRecord>,
    /// The datasets.
    pub datasets: Vec<DatasetRecord>,
    /// The nodes that are out of service.
    pub withdrawn: Vec<WithdrawnRecord>,
    /// The images.
    pub images: Vec<KeptImage>,
    /// The last rollout.
    pub rollout: Option<RolloutStatus>,
    /// The users.
    pub users: Vec<UserStatus>,
    /// The audit log, by number.
    pub audit: Vec<AuditEntry>,
    /// The jobs that have ended.
    pub history: Vec<EndedRecord>,
    /// The files of the spool, which are in no record.
    pub spool: Vec<FoundFile>,
}

impl Default for Saved {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            next_incarnation: 1,
            next_job: 1,
            epoch: 0,
            clock: 0,
            secret: None,
            members: Vec::new(),
            departures: Vec::new(),
            names: Vec::new(),
            jobs: Vec::new(),
            datasets: Vec::new(),
            withdrawn: Vec::new(),
            images: Vec::new(),
            rollout: None,
            users: Vec::new(),
            audit: Vec::new(),
            history: Vec::new(),
            spool: Vec::new(),
        }
    }
}

impl Saved {
    /// The number of numbers that a manager may use before it has saved anything.
    pub const RESERVED: u64 = 1024;

    /// The time of the manager's clock that is reserved at once.
    pub const CLOCK: Duration = Duration::from_secs(24 * 3600);

    /// Returns the records with which the numbers and the time of this state continue after a gap.
    pub(crate) fn beyond(&self, numbers: u64, time: Duration) -> [Record; 4] {
        [
            Record::NextIncarnation(self.next_incarnation.saturating_add(numbers)),
            Record::NextJob(self.next_job.saturating_add(numbers)),
            Record::Epoch(self.epoch.saturating_add(numbers)),
            Record::Clock(self.clock.saturating_add(nanos(time))),
        ]
    }

    /// Returns the records that the store saves before a manager starts with this state.
    #[must_use]
    pub fn reservation(&self) -> [Record; 4] {
        [
            Record::NextIncarnation(self.next_incarnation + Self::RESERVED),
            Record::NextJob(self.next_job + Self::RESERVED),
            Record::Epoch(self.epoch + 1),
            Record::Clock(self.clock.saturating_add(nanos(Self::CLOCK))),
        ]
    }
}

/// Returns a duration in nanoseconds.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A record to save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The name has been given this node id.
    Node(String, NodeId),
    /// The name has no id any more.
    Forget(String),
    /// The new [`Saved::next_incarnation`].
    NextIncarnation(u64),
    /// The new value of [`Saved::next_job`].
    NextJob(u64),
    /// The new value of [`Saved::epoch`].
    Epoch(u64),
    /// The new value of [`Saved::clock`].
    Clock(u64),
    /// The new value of [`Saved::secret`].
    Secret(VouchingSecret),
    /// A node has become a member.
    Member(Box<MemberRecord>),
    /// An incarnation has ended, and members have to confirm that.
    Left(NodeId, Incarnation),
    /// All members have confirmed the end of an incarnation.
    Settled(NodeId, Incarnation),
    /// A name has been bound.
    Name(NameRecord),
    /// The name is free.
    Unname(String),
    /// A job has been submitted, or has made progress.
    Job(Arc<JobRecord>),
    /// Nobody waits for the job any more.
    JobGone(JobId),
    /// The output of a job stays on the nodes.
    Dataset(DatasetRecord),
    /// The dataset is gone.
    DatasetGone(String),
    /// A node is out of service.
    Withdrawn(WithdrawnRecord),
    /// The node of this name is in service.
    InService(String),
    /// An image is kept.
    Image(KeptImage),
    /// The image with this SHA-256 is gone.
    ImageGone([u8; 32]),
    /// The progress of the last rollout.
    Rollout(Box<RolloutStatus>),
    /// A user is new, or has another role.
    User(UserStatus),
    /// There is no user of this name any more.
    UserGone(String),
    /// An entry of the audit log.
    Audit(AuditEntry),
    /// The oldest entry of the audit log, of this number, is forgotten.
    AuditGone(u64),
    /// A job has ended.
    Ended(Arc<EndedRecord>),
    /// The history has forgotten the job.
    EndedGone(JobId),
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// The node's id.
    pub node: NodeId,
    /// The node's incarnation.
    pub incarnation: Incarnation,
    /// The GID that the node was given.
    pub gid: Gid,
    /// The node's description.
    pub join: Join,
}

/// A bound name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRecord {
    /// The name.
    pub name: String,
    /// The node that has bound it.
    pub owner: NodeId,
    /// The incarnation of that node.
    pub incarnation: Incarnation,
    /// The node's number of the request, with which the node may ask again.
    pub request: u32,
    /// The number of the binding.
    pub number: u64,
    /// The value.
    pub value: Vec<u8>,
}

/// The nodes that a client wants for a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wanted {
    /// Any idle nodes, in this number; 0 stands for all nodes.
    Any(u16),
    /// The nodes with the given names; the order of the names gives the ranks.
    Named(Vec<String>),
}

/// A job as a client has submitted it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The application.
    pub app: String,
    /// The arguments of the application.
    pub args: Vec<String>,
    /// The nodes.
    pub wanted: Wanted,
    /// The files that the client sends.
    pub inputs: Vec<InputFile>,
    /// The names of the datasets that the job reads.
    pub datasets: Vec<String>,
    /// The name of the dataset that the output becomes.
    pub keep: Option<String>,
    /// The time limit of the job.
    pub limit: Option<Duration>,
}

impl From<JobRequest> for Spec {
    fn from(request: JobRequest) -> Self {
        let JobRequest { app, args, nodes, on, inputs, datasets, keep, limit_ms } = request;
        let wanted = if on.is_empty() { Wanted::Any(nodes) } else { Wanted::Named(on) };
        let limit = limit_ms.map(Duration::from_millis);
        Self { app, args, wanted, inputs, datasets, keep, limit }
    }
}

/// The report of a node, encoded: as long as it waits, it takes a fifth of the memory. Copies share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptReport(Arc<[u8]>);

impl KeptReport {
    /// Encodes a report.
    #[must_use]
    pub fn new(report: &JobReport) -> Self {
        Self(proto::encode(report).into())
    }

    /// Returns the length of the encoded report, in bytes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the report; `None` if a store had other bytes than a manager has written.
    #[must_use]
    pub fn report(&self) -> Option<JobReport> {
        proto::decode(&self.0).ok()
    }
}

/// The progress of a job, as far as a restarted manager needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// No node computes yet. After a restart of the manager the job starts again.
    Loading,
    /// The nodes have all input. After a restart of the manager the job goes on.
    Running,
    /// The job is done, and its client may not know it.
    Done {
        /// The reports of the nodes.
        reports: Vec<(NodeId, KeptReport)>,
        /// The time from the last byte of input until the last node was done, in microseconds.
        run_us: u64,
        /// The time from the first byte of input to the last, in microseconds.
        stream_us: u64,
    },
    /// The job waits in the queue and has not begun.
    Queued,
}

/// The terms of a job, and what the queue knows of it. Times are milliseconds of Unix time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The terms on which the job was submitted.
    pub terms: Terms,
    /// The user who has submitted it; empty for a peer with the cluster's key for clients alone.
    pub owner: String,
    /// The client that has submitted the job, for people.
    pub by: String,
    /// The time of the submission.
    pub submitted_ms: u64,
    /// The time of the last start; zero before the first.
    pub started_ms: u64,
    /// The number of times that the job went back to the queue because a node had died.
    pub requeues: u8,
    /// The quality of service that the job gets. A record has it at its own end, behind what earlier versions
    /// have written.
    #[serde(skip)]
    pub qos: JobQos,
}

/// A job that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedRecord {
    /// The number that the job had first.
    pub job: JobId,
    /// The application.
    pub app: String,
    /// The number of nodes that were wanted, 0 for all.
    pub wanted: u16,
    /// The time limit, in milliseconds.
    pub limit_ms: Option<u64>,
    /// The terms, and the times of the submission and of the start.
    pub ticket: Ticket,
    /// The names of the nodes by rank; empty if the job has not started.
    pub nodes: Vec<String>,
    /// The reports, each with the name of its node; none if they are longer than a history keeps.
    pub reports: Vec<(String, KeptReport)>,
    /// The end.
    pub end: JobEnd,
    /// The time of the end.
    pub ended_ms: u64,
    /// The length of the output that the spool was given, in bytes. A record of an earlier version ends
    /// before this field.
    pub output: Option<u64>,
    /// True if the files of the job are not kept any longer.
    pub expired: bool,
    /// The quality of service that the job had. A record of an earlier version ends before this field.
    pub qos: JobQos,
}

impl EndedRecord {
    /// Decodes a record of this version or of an earlier one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let with = |end: &[u8]| proto::decode::<Self>(&[bytes, end].concat());
        let plain = proto::encode(&JobQos::default());
        let first = || with(&[proto::encode(&(None::<u64>, false)), plain.clone()].concat());
        let mut record = proto::decode::<Self>(bytes).or_else(|_| with(&plain)).or_else(|_| first()).ok()?;
        record.ticket.qos = record.qos;
        Some(record)
    }
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The present number of the job.
    pub job: JobId,
    /// The number that the job had first. It differs if the job has started again.
    pub first: JobId,
    /// The job as it was submitted.
    pub spec: Spec,
    /// The nodes by rank.
    pub nodes: Vec<(NodeId, Incarnation)>,
    /// The progress of the job.
    pub stage: Stage,
    /// The terms. A record of the former release has none, and ends here.
    pub ticket: Ticket,
    /// The quality of service. A record of an earlier version ends before this field.
    pub qos: JobQos,
}

impl JobRecord {
    /// Decodes a record of this version or of an earlier one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let with = |end: &[u8]| proto::decode::<Self>(&[bytes, end].concat());
        let plain = proto::encode(&JobQos::default());
        let former = || with(&[proto::encode(&Ticket::default()), plain.clone()].concat());
        let mut record = proto::decode::<Self>(bytes).or_else(|_| with(&plain)).or_else(|_| former()).ok()?;
        record.ticket.qos = record.qos;
        Some(record)
    }
}

/// A dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetRecord {
    /// The name.
    pub name: String,
    /// The job whose output it is.
    pub job: JobId,
    /// The application of that job.
    pub app: String,
    /// The nodes of the job.
    pub nodes: Vec<NodeId>,
    /// The lengths of the pieces, and the nodes that hold them, in order.
    pub pieces: Vec<(NodeId, u64)>,
}
