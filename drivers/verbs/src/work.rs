//! Work requests: the operations that are posted to queue pairs.

use crate::{AddressVector, QKey, QpNum, RemoteKey, WrId};
use platform::IoAddr;

/// A piece of local memory (scatter/gather element). The RNIC's one key covers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sge {
    /// The address of the first byte.
    pub addr: IoAddr,
    /// The length in bytes.
    pub len: u32,
}

/// An address in a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteAddr {
    /// The address of the first byte, as the peer knows it.
    pub addr: IoAddr,
    /// The peer's key for the memory.
    pub key: RemoteKey,
}

/// The data of a SEND or a WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// The data is gathered from memory, which the RNIC may read until the completion.
    Gather(&'a [Sge]),
    /// The data is copied by the call itself; at most
    /// [`Attributes::max_inline`](crate::Attributes::max_inline) bytes.
    Inline(&'a [u8]),
}

/// The operation of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp<'a> {
    /// SEND: writes into the oldest receive that the peer has posted.
    Send {
        /// The message.
        data: Payload<'a>,
        /// Immediate data, which the receiver finds in its completion.
        imm: Option<u32>,
    },
    /// SEND with invalidate: also invalidates a key of the peer, which the peer's completion names
    /// (specification 9.4.1.1.3).
    SendInvalidate {
        /// The message.
        data: Payload<'a>,
        /// The peer's key. If it may not be invalidated, the queue pair fails at both ends.
        key: RemoteKey,
    },
    /// RDMA WRITE.
    Write {
        /// The data.
        data: Payload<'a>,
        /// The address in the peer's memory that is written.
        remote: RemoteAddr,
        /// Immediate data, which consumes a receive at the peer and completes it.
        imm: Option<u32>,
    },
    /// RDMA READ.
    Read {
        /// The buffers that the data is written to, in order. Their lengths add up to the length read.
        into: &'a [Sge],
        /// The address that is read.
        remote: RemoteAddr,
    },
    /// Atomic fetch-and-add on 8 aligned bytes.
    FetchAdd {
        /// The address that receives the 8-byte previous value (native endian).
        result: IoAddr,
        /// The address of the 8 bytes.
        remote: RemoteAddr,
        /// The number to add, wrapping.
        add: u64,
    },
    /// Atomic compare-and-swap on 8 aligned bytes.
    CompareSwap {
        /// The address that receives the 8-byte previous value (native endian).
        result: IoAddr,
        /// The address of the 8 bytes.
        remote: RemoteAddr,
        /// The value that the 8 bytes must have for the swap.
        compare: u64,
        /// The value that is stored if the 8 bytes equal `compare`.
        swap: u64,
    },
}

/// A send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendWr<'a> {
    /// The identifier that the completion returns.
    pub id: WrId,
    /// The operation.
    pub op: SendOp<'a>,
    /// True if success makes a completion. Failure always does.
    pub signaled: bool,
    /// True if the peer is asked to raise a solicited event.
    pub solicited: bool,
    /// True if the operation starts only after earlier READs and atomics of the queue pair have completed.
    pub fence: bool,
}

/// A datagram to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdSendWr<'a> {
    /// The identifier that the completion returns.
    pub id: WrId,
    /// The path to the receiver's port.
    pub to: AddressVector,
    /// The receiver's queue pair.
    pub remote_qp: QpNum,
    /// The receiver's Q_Key. A [controlled](QKey::is_controlled) one stands for that of the sending queue
    /// pair.
    pub qkey: QKey,
    /// The message: at most one packet.
    pub data: Payload<'a>,
    /// Immediate data, which the receiver finds in its completion.
    pub imm: Option<u32>,
    /// True if success makes a completion. Failure always does.
    pub signaled: bool,
    /// True if the receiver is asked to raise a solicited event.
    pub solicited: bool,
}

/// Bytes that precede each datagram in the buffer of its receive (specification 11.4.1.2): a GRH, or with
/// RoCEv2 over IPv4 20 bytes of zeros and the IPv4 header.
/// [`Completion::byte_len`](crate::Completion::byte_len) includes them.
pub const GRH_LEN: u32 = 40;

/// A receive work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvWr<'a> {
    /// The identifier that the completion returns.
    pub id: WrId,
    /// The buffers that a SEND is written to, in order; empty if only WRITEs with immediate data consume the
    /// receive. A datagram is written behind [`GRH_LEN`] bytes.
    pub scatter: &'a [Sge],
}
