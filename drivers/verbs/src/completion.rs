//! Completions.

use crate::{QpNum, RemoteKey, WrId};

/// How a work request ended (specification 11.6.2; the names are libibverbs').
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// Done.
    Success,
    /// A local buffer was too short for what came, or too long for the service.
    LocalLengthError,
    /// The queue pair is in no state to do that.
    LocalQpOperationError,
    /// A local address is not memory of the one key.
    LocalProtectionError,
    /// Ended because the queue pair went to the error state before it was done.
    WorkRequestFlushed,
    /// The peer refused the request as malformed.
    RemoteInvalidRequest,
    /// The peer refused the address, the key or the right.
    RemoteAccessError,
    /// The peer could not do it.
    RemoteOperationError,
    /// No acknowledgement within the timeouts and retries.
    RetryExceeded,
    /// The peer had no receive posted for too long.
    RnrRetryExceeded,
    /// The peer broke the protocol.
    BadResponse,
}

/// Which kind of work ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WorkKind {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Fetch-and-add.
    FetchAdd,
    /// Compare-and-swap.
    CompareSwap,
    /// A receive that took a SEND.
    Recv,
    /// A receive that took the immediate of a WRITE; its bytes are in place.
    RecvWriteImm,
}

/// The end of one work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The work request's name.
    pub id: WrId,
    /// Its queue pair.
    pub qp: QpNum,
    /// How it ended; the fields below hold only with [`Status::Success`].
    pub status: Status,
    /// What it was.
    pub kind: WorkKind,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data received.
    pub imm: Option<u32>,
    /// The key of this node that the SEND received has taken away; never together with `imm`.
    pub invalidated: Option<RemoteKey>,
    /// The queue pair that sent a datagram received.
    pub src_qp: Option<QpNum>,
}

impl Completion {
    /// A completion that tells of no bytes and no immediate data.
    #[must_use]
    pub const fn new(id: WrId, qp: QpNum, status: Status, kind: WorkKind) -> Self {
        Self { id, qp, status, kind, byte_len: 0, imm: None, invalidated: None, src_qp: None }
    }

    /// What to fill a buffer for [`Rnic::poll_cq`](crate::Rnic::poll_cq) with.
    pub const BLANK: Self = Self::new(WrId(0), QpNum::new(0), Status::Success, WorkKind::Send);
}
