//! Messages between a node and the manager, after the join.

use crate::{
    BootImage, Incarnation, JobId, JobQos, JobReport, JobStanding, JobStart, Member, NodeId, OLDEST_VERSION,
    PowerAction, Reason, Resumed, RunningImage, Telemetry, VoucherKey, Welcome,
};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};
use verbs::QpNum;

/// The maximum length of a name in the directory, in bytes.
pub const MAX_NAME: usize = 256;
/// The maximum length of a value in the directory, in bytes.
pub const MAX_VALUE: usize = 1024;

/// Checks that the directory accepts a name and a value of these lengths.
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

/// The reason for which a request to the name directory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NameError {
    /// No value is bound to the name.
    #[error("no such name")]
    NotFound,
    /// The name is bound already.
    #[error("the name is taken")]
    Taken,
    /// Another node has bound the name.
    #[error("the name belongs to another node")]
    NotOwner,
    /// The name is empty or longer than [`MAX_NAME`], or the value longer than [`MAX_VALUE`].
    #[error("the name is empty, or the name or its value is too long")]
    Length,
    /// The names of the node take [`NAME_QUOTA`](ToManager::NAME_QUOTA) bytes already.
    #[error("this node has bound the maximum number of names")]
    Quota,
    /// The manager cannot number the binding, because its disk is slow or full.
    #[error("the manager waits for its disk: try again")]
    Unsaved,
}

/// From a node to the manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToManager {
    /// Renews the lease. The platform's poller sends it, also while applications compute.
    Heartbeat {
        /// The number of the heartbeat; grows.
        seq: u64,
    },
    /// A message for another member (connection set-up), which the manager forwards unread.
    Relay {
        /// The receiver.
        to: NodeId,
        /// The incarnation of the receiver. The manager drops the message if the receiver has another.
        incarnation: Incarnation,
        /// The message, at most 4096 bytes.
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
    /// Binds a name to this node. The answer is [`ToNode::Name`] with the number of the binding.
    NameBind {
        /// A number chosen by the node and returned in the answer.
        request: u32,
        /// The name.
        name: String,
        /// The value, at most 1024 bytes.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Removes a name that this node has bound. The manager removes the names of a node that leaves or dies.
    NameUnbind {
        /// A number chosen by the node and returned in the answer.
        request: u32,
        /// The name.
        name: String,
    },
    /// Asks for the value of a name.
    NameLookup {
        /// A number chosen by the node and returned in the answer.
        request: u32,
        /// The name.
        name: String,
    },
    /// The node accepts its part in a job and waits for input.
    JobAccepted {
        /// The job.
        job: JobId,
    },
    /// The progress of the node in a job.
    JobProgress {
        /// The job.
        job: JobId,
        /// The current phase: `load`, `map`, `shuffle`, `reduce`, `merge`. The manager forwards at most
        /// [`MAX_PHASE`](ToManager::MAX_PHASE) bytes of it, and drops some messages of a node that sends
        /// many.
        phase: String,
        /// The amount done, in units of the phase.
        done: u64,
        /// The total amount, in units of the phase.
        total: u64,
    },
    /// The next bytes of the job's output. Only rank 0 has output. At most
    /// [`OUTPUT_WINDOW`](Self::OUTPUT_WINDOW) bytes may be unacknowledged.
    JobOutput {
        /// The job.
        job: JobId,
        /// The position of the first byte in the output.
        offset: u64,
        /// The bytes, at most 64 KiB.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The node has completed its part, and the client has all output of it. The node keeps the report until
    /// [`ToNode::JobForget`].
    JobDone {
        /// The job.
        job: JobId,
        /// The node's report.
        report: JobReport,
    },
    /// The node cannot accept or complete its part, and holds nothing of the job any more. The job has
    /// failed.
    JobFailed {
        /// The job.
        job: JobId,
        /// The reason.
        reason: Reason,
    },
    /// The node leaves in an orderly way.
    Leave,
    /// The node dies: panic, fault, exhausted memory.
    LastWords {
        /// The reason.
        reason: Reason,
    },
    /// The node has learned that an incarnation has ended, and has destroyed its queue pairs to it.
    LeftSeen {
        /// The node whose incarnation has ended.
        node: NodeId,
        /// The incarnation that has ended.
        incarnation: Incarnation,
    },
    /// The memory that the node has free for regions. The node sends it after large changes.
    MemoryFree {
        /// The amount, in bytes.
        bytes: u64,
    },
    /// Asks for the members with the most free memory. The answer is [`ToNode::MemoryFree`].
    AskMemoryFree {
        /// A number chosen by the node and returned in the answer.
        request: u32,
    },
    /// The amount of a job's input that the node is ready to accept. The manager sends no more, so that input
    /// never delays urgent messages on the connection. The node sends it after
    /// [`JobAccepted`](Self::JobAccepted), and again as it consumes input.
    JobInputCredit {
        /// The job.
        job: JobId,
        /// The sum of the [charges](ToNode::input_charge) of all [`ToNode::JobInput`] of this job, including
        /// those received before. It never falls, and is at most [`MAX_CREDIT`](Self::MAX_CREDIT) above the
        /// sum that the manager has sent.
        bytes: u64,
    },
    /// The node's part of a cancelled job has ended, and the node holds nothing of it any more. The answer to
    /// [`ToNode::JobCancel`], also if the node no longer knows the job.
    JobOver {
        /// The job.
        job: JobId,
    },
    /// Asks for a voucher, with which the node sets up a connection with another member. The answer is
    /// [`ToNode::Voucher`], unless the other member's incarnation has ended.
    AskVoucher {
        /// A number chosen by the node and returned in the answer.
        request: u64,
        /// The other member.
        to: NodeId,
        /// The incarnation of the other member.
        incarnation: Incarnation,
    },
    /// The queue pair at which the node receives datagrams that set up connections; `None`: the node's RNIC
    /// has no datagrams. The manager passes it on with each voucher for the node.
    Datagrams {
        /// The number of the queue pair.
        queue_pair: Option<QpNum>,
    },
    /// The former boot of the node's machine ended by a failure, which the node may not have been
    /// able to tell.
    FormerEnd {
        /// The reason.
        reason: Reason,
    },
    /// The node has taken the first bytes of the image that its machine is to boot.
    ImageTaken {
        /// The number of these bytes.
        bytes: u64,
    },
    /// The image is whole and is a kernel: the node leaves now, and its machine boots the image.
    ImageReady,
    /// The machine does not boot the image. The node stays a member.
    ImageRefused {
        /// The reason.
        reason: Reason,
    },
    /// The report on the machine's hardware, which the manager writes to its log once for each incarnation.
    HardwareReport {
        /// The lines, at most [`MAX_REPORT`](Self::MAX_REPORT) bytes.
        lines: String,
    },
    /// The answer to [`ToNode::AskJobs`].
    Jobs {
        /// The node's parts of jobs, and those that have ended and that the manager has not told it to
        /// [forget](ToNode::JobForget).
        jobs: Vec<(JobId, JobStanding)>,
        /// The jobs whose output the node keeps.
        kept: Vec<JobId>,
    },
    /// The counters that have changed, about once in a second (version 10).
    Telemetry(Telemetry),
    /// Lines of the node's log (version 10).
    Log {
        /// The lines, each a [`LogLine`](crate::LogLine) and a line feed, in the order of their times; at
        /// most [`MAX_LOG`](Telemetry::MAX_LOG) bytes.
        #[serde(with = "serde_bytes")]
        lines: Vec<u8>,
    },
    /// Passes a name of this node to another member, with another value (version 10). The answer is
    /// [`ToNode::Name`] as for a bind. A second request has no effect.
    NameGive {
        /// A number chosen by the node and returned in the answer.
        request: u32,
        /// The name.
        name: String,
        /// The other member.
        to: NodeId,
        /// The incarnation of the other member.
        incarnation: Incarnation,
        /// The value, at most 1024 bytes.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// The end of [`ToNode::Vacate`]: no memory of a region is on the node any more (version 10).
    Vacated {
        /// The reason why some is, if the node could not move it.
        result: Result<(), Reason>,
    },
    /// The answer to [`ToNode::AskImage`] (version 10).
    Image(RunningImage),
    /// The answer to [`ToNode::Check`] (version 10).
    Checked {
        /// The number of the request.
        request: u32,
        /// A reason for users if memory of a peer could not be written and read.
        result: Result<(), Reason>,
    },
}

impl ToManager {
    /// Returns the first version of the protocol that has this message.
    #[must_use]
    pub const fn since(&self) -> u16 {
        match self {
            Self::NameGive { .. } => Self::GIVES_NAMES,
            Self::Telemetry(_)
            | Self::Log { .. }
            | Self::Vacated { .. }
            | Self::Image(_)
            | Self::Checked { .. } => 10,
            _ => OLDEST_VERSION,
        }
    }

    /// The first version of the protocol in which names change hands.
    pub const GIVES_NAMES: u16 = 10;
    /// The maximum length of a report on hardware, in bytes.
    pub const MAX_REPORT: usize = 48 << 10;
    /// The maximum number of bytes of output that may be unacknowledged.
    pub const OUTPUT_WINDOW: usize = 1 << 20;
    /// The maximum amount of input that a node may be ready to accept at once, in charges.
    pub const MAX_CREDIT: u64 = 16 << 20;
    /// The maximum number of bytes that the names of a node may take. A name takes its own length, that of
    /// its value, and [`NAME_COST`](Self::NAME_COST).
    pub const NAME_QUOTA: usize = 1 << 20;
    /// The bytes that a name takes in addition to its own length and that of its value.
    pub const NAME_COST: usize = 64;
    /// The maximum length of a phase in a forwarded progress message, in bytes.
    pub const MAX_PHASE: usize = 32;
}

/// From the manager to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToNode {
    /// The join was granted: the node is a member.
    Welcome(Welcome),
    /// The join was refused. The connection ends.
    Refused {
        /// The reason.
        reason: Reason,
    },
    /// Acknowledges heartbeat `seq`: the lease now runs from the time at which it was sent.
    HeartbeatAck {
        /// The number of the acknowledged heartbeat.
        seq: u64,
        /// The time of the manager's clock, in nanoseconds.
        time: u64,
    },
    /// A node has become a member.
    Joined(Member),
    /// A member has left or is declared dead. Its ended incarnation will not act again.
    Left {
        /// The departed node.
        node: NodeId,
        /// The incarnation that has ended.
        incarnation: Incarnation,
        /// The reason: `left`, `lease expired`, `connection lost`, or its last words.
        reason: Reason,
    },
    /// A message from another member.
    Relayed {
        /// The sender.
        from: NodeId,
        /// The sender's incarnation.
        incarnation: Incarnation,
        /// The message.
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
    /// The answer to a request to the name directory.
    Name {
        /// The request's number.
        request: u32,
        /// The node that has bound the name, and the value. For a bind, the value is the number of the
        /// binding, 8 bytes in little endian, which is larger than all previous ones, also across restarts of
        /// the manager. For an unbind it is empty.
        result: Result<(NodeId, Vec<u8>), NameError>,
    },
    /// Starts this node's part of a job. The answer is [`ToManager::JobAccepted`] or
    /// [`ToManager::JobFailed`].
    JobStart(JobStart),
    /// A piece of this node's input, within the node's [credit](ToManager::JobInputCredit).
    JobInput {
        /// The job.
        job: JobId,
        /// Index of the file in [`JobStart::inputs`].
        file: u32,
        /// The position of the first byte in the file.
        offset: u64,
        /// The next bytes of the split, at most 48 KiB.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// True if the split ends here; the next piece then starts another split.
        end_of_split: bool,
    },
    /// All input has been sent to all nodes: the node starts to compute.
    JobInputEnd {
        /// The job.
        job: JobId,
    },
    /// Acknowledges output: the client has it.
    JobOutputAck {
        /// The job.
        job: JobId,
        /// The number of bytes that the client has, from the beginning of the output.
        bytes: u64,
    },
    /// The job has failed or was cancelled: the node frees everything that it holds for it. The answer is
    /// [`ToManager::JobOver`], unless the node has already sent [`ToManager::JobDone`] or
    /// [`ToManager::JobFailed`]. Until then the node receives no other job.
    JobCancel {
        /// The job.
        job: JobId,
        /// The reason.
        reason: Reason,
    },
    /// Makes the node leave the cluster and power off.
    Shutdown,
    /// All members that were present when an incarnation ended have confirmed its end. No packet of that
    /// incarnation reaches any member any more.
    Settled {
        /// The node whose incarnation has ended.
        node: NodeId,
        /// The incarnation that has ended.
        incarnation: Incarnation,
    },
    /// The members with the most free memory.
    MemoryFree {
        /// The request's number.
        request: u32,
        /// Nodes and their free bytes, the most first; at most [`MOST_FREE`](Self::MOST_FREE).
        nodes: Vec<(NodeId, u64)>,
    },
    /// A voucher for the receiver of this message.
    Voucher {
        /// The request's number.
        request: u64,
        /// The member that the voucher is for.
        to: NodeId,
        /// The [stamp](crate::Attempt::stamp) of the voucher.
        stamp: u64,
        /// The key of the voucher.
        key: VoucherKey,
        /// The queue pair at which that member receives datagrams, if it has one.
        queue_pair: Option<QpNum>,
    },
    /// Nobody needs the output that the node keeps of a job: the node frees it.
    DropDataset {
        /// The job.
        job: JobId,
    },
    /// Makes the node leave the cluster, and turns its machine off or resets it.
    Power(PowerAction),
    /// The machine boots the image that follows in pieces. The node leaves before. The answer is
    /// [`ToManager::ImageReady`] or [`ToManager::ImageRefused`].
    Image(BootImage),
    /// The next bytes of the image. The answer is [`ToManager::ImageTaken`], but for the last ones.
    ImagePiece {
        /// The bytes, at most [`BootImage::PIECE`].
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Nobody sends the rest of the image: the node frees what has arrived.
    ImageDrop,
    /// The node's membership goes on, on this connection.
    Resumed(Resumed),
    /// Asks a node that has resumed for its parts of jobs. The answer is [`ToManager::Jobs`].
    AskJobs,
    /// The node sends the output of a job from here on, again if it has sent it before.
    JobOutputFrom {
        /// The job.
        job: JobId,
        /// The position of the first byte to send.
        offset: u64,
    },
    /// The manager has recorded the end of the job: the node forgets its report.
    JobForget {
        /// The job.
        job: JobId,
    },
    /// The node moves all memory of regions to other nodes, because it is about to leave; or it accepts
    /// regions again (version 10). The answer is [`ToManager::Vacated`]. An order to begin that comes before
    /// the answer to the last one has no answer of its own.
    Vacate {
        /// False: the node accepts regions again. There is no answer.
        begin: bool,
    },
    /// Asks a machine which image it runs (version 10). The answer is [`ToManager::Image`].
    AskImage,
    /// Makes the node write and read memory of all its peers (version 10). The answer is
    /// [`ToManager::Checked`].
    Check {
        /// The number of the request.
        request: u32,
    },
    /// Does the same as [`JobStart`](Self::JobStart) for a job with a quality of service (version 11).
    JobStartWith {
        /// The node's part.
        start: Box<JobStart>,
        /// The quality of service.
        qos: JobQos,
    },
}

impl ToNode {
    /// Returns the first version of the protocol that has this message.
    #[must_use]
    pub const fn since(&self) -> u16 {
        match self {
            Self::JobStartWith { .. } => Self::LIMITS_JOBS,
            Self::Vacate { .. } | Self::AskImage | Self::Check { .. } => 10,
            _ => OLDEST_VERSION,
        }
    }

    /// The first version of the protocol in which jobs have a quality of service. Nodes of a former one take
    /// no such job.
    pub const LIMITS_JOBS: u16 = 11;
    /// The maximum length of an encoded [`HeartbeatAck`](Self::HeartbeatAck), in bytes. Few other messages
    /// are that short.
    pub const LONGEST_ACK: usize = 21;
    /// The maximum number of members in a [`ToNode::MemoryFree`].
    pub const MOST_FREE: usize = 256;
    /// The minimum charge of a [`JobInput`](Self::JobInput), so that single bytes are not free.
    pub const MIN_CHARGE: u64 = 512;
    /// The amount of input that an appliance or `lite-node` is ready to accept at once, in charges. It covers
    /// a round trip of 0.8 ms at 10 Gbit/s, and takes 2 s at 500 kB/s.
    pub const INPUT_WINDOW: u64 = 1 << 20;

    /// The most bytes of messages that are [not for LITE](Self::is_for_lite) and that may wait at a node. The
    /// window keeps an honest manager below this: it covers the input of two jobs that the node was ready to
    /// accept, one of which was cancelled, and other messages.
    pub const MAX_WAITING: usize = 4 * Self::INPUT_WINDOW as usize;

    /// Returns true if LITE handles an encoded message itself. All others (those of jobs, datasets and the
    /// machine, and [`Shutdown`](Self::Shutdown)) are for the program above LITE. Reads the first byte only.
    #[must_use]
    pub fn is_for_lite(encoded: &[u8]) -> bool {
        // The encoding starts with the index of the variant: 7 is `JobStart`, 12 is `Shutdown`, 16 is
        // `DropDataset`, 17 to 20 are from `Power` to `ImageDrop`, 22 to 24 from `AskJobs` to
        // `JobForget`, 26 to 28 from `AskImage` to `JobStartWith`.
        !matches!(encoded.first(), Some(7..=12 | 16..=20 | 22..=24 | 26..=28))
    }

    /// Returns true if an encoded message is [`Refused`](Self::Refused) or [`Resumed`](Self::Resumed). Reads
    /// the first byte only.
    #[must_use]
    pub fn is_of_membership(encoded: &[u8]) -> bool {
        matches!(encoded.first(), Some(1 | 21))
    }

    /// Returns the credit that a [`JobInput`](Self::JobInput) of `bytes` bytes consumes: `bytes`, but at
    /// least [`MIN_CHARGE`](Self::MIN_CHARGE).
    #[must_use]
    pub fn input_charge(bytes: usize) -> u64 {
        (bytes as u64).max(Self::MIN_CHARGE)
    }
}
