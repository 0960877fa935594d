//! Completions of work requests, and the queues that hold them.

use crate::{QpNum, RemoteKey, WrId};

/// The result of a work request (specification 11.6.2; the names are libibverbs').
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// The work request was carried out.
    Success,
    /// A local buffer was too short for the data received, or a message too long for the service.
    LocalLengthError,
    /// The queue pair is not in a state that allows the work request.
    LocalQpOperationError,
    /// A local address is outside of the memory that the key covers.
    LocalProtectionError,
    /// The queue pair went to the error state before the work request was carried out.
    WorkRequestFlushed,
    /// The peer refused the request as malformed.
    RemoteInvalidRequest,
    /// The peer refused the address, the key or the right.
    RemoteAccessError,
    /// The peer could not carry out the request.
    RemoteOperationError,
    /// No acknowledgement arrived within the timeouts and retries.
    RetryExceeded,
    /// The peer had no receive posted, and the retries for that case ran out.
    RnrRetryExceeded,
    /// The peer violated the protocol.
    BadResponse,
}

/// The kind of a work request.
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
    /// A receive that a SEND consumed.
    Recv,
    /// A receive that a WRITE with immediate data consumed. The data written is already in place.
    RecvWriteImm,
}

/// The completion of one work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The identifier that the caller gave the work request.
    pub id: WrId,
    /// The queue pair of the work request.
    pub qp: QpNum,
    /// The result. The fields below are valid only with [`Status::Success`].
    pub status: Status,
    /// The kind of the work request.
    pub kind: WorkKind,
    /// The number of bytes received or read.
    pub byte_len: u32,
    /// The immediate data of the message received, if it has any.
    pub imm: Option<u32>,
    /// The key of this node that the received SEND invalidated; never together with `imm`.
    pub invalidated: Option<RemoteKey>,
    /// The queue pair that sent the received datagram.
    pub src_qp: Option<QpNum>,
}

impl Completion {
    /// Makes a completion without bytes and immediate data.
    #[must_use]
    pub const fn new(id: WrId, qp: QpNum, status: Status, kind: WorkKind) -> Self {
        Self { id, qp, status, kind, byte_len: 0, imm: None, invalidated: None, src_qp: None }
    }

    /// A value to fill a buffer for [`Rnic::poll_cq`](crate::Rnic::poll_cq) with.
    pub const BLANK: Self = Self::new(WrId(0), QpNum::new(0), Status::Success, WorkKind::Send);
}
