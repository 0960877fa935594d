//! Work requests.

use crate::{AddressVector, QKey, QpNum, RemoteKey, WrId};
use platform::IoAddr;

/// A piece of local memory (scatter/gather element). The RNIC's one key covers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sge {
    /// First byte.
    pub addr: IoAddr,
    /// Bytes.
    pub len: u32,
}

/// A place in a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteAddr {
    /// First byte, as the peer addresses it.
    pub addr: IoAddr,
    /// The peer's key.
    pub key: RemoteKey,
}

/// What a SEND or WRITE carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// Gathered from memory, which the RNIC may read until the completion.
    Gather(&'a [Sge]),
    /// Copied by the call itself; at most [`Attributes::max_inline`](crate::Attributes::max_inline) bytes.
    Inline(&'a [u8]),
}

/// What a send work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp<'a> {
    /// SEND: into the buffer that the peer posted next.
    Send {
        /// The message.
        data: Payload<'a>,
        /// Immediate data, given to the receiver in its completion.
        imm: Option<u32>,
    },
    /// SEND that also takes a key of the peer away, which the peer's completion names (specification 9.4.1.1.3).
    SendInvalidate {
        /// The message.
        data: Payload<'a>,
        /// The peer's key. One that may not be invalidated ends the queue pair at both ends.
        key: RemoteKey,
    },
    /// RDMA WRITE.
    Write {
        /// The bytes.
        data: Payload<'a>,
        /// Their target.
        remote: RemoteAddr,
        /// Immediate data: consumes a receive at the peer and completes it.
        imm: Option<u32>,
    },
    /// RDMA READ.
    Read {
        /// Where the bytes go, in order; their lengths add up to the length read.
        into: &'a [Sge],
        /// Their source.
        remote: RemoteAddr,
    },
    /// Atomic fetch-and-add on 8 aligned bytes.
    FetchAdd {
        /// Where the 8-byte value before goes (native endian).
        result: IoAddr,
        /// The target.
        remote: RemoteAddr,
        /// Added, wrapping.
        add: u64,
    },
    /// Atomic compare-and-swap on 8 aligned bytes.
    CompareSwap {
        /// Where the 8-byte value before goes (native endian).
        result: IoAddr,
        /// The target.
        remote: RemoteAddr,
        /// What the target must hold.
        compare: u64,
        /// What it then gets.
        swap: u64,
    },
}

/// A send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub id: WrId,
    /// What to do.
    pub op: SendOp<'a>,
    /// Whether success makes a completion (failure always does).
    pub signaled: bool,
    /// Asks the peer to raise a solicited event.
    pub solicited: bool,
    /// Starts only after earlier READs and atomics of the queue pair have completed.
    pub fence: bool,
}

/// A datagram to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdSendWr<'a> {
    /// Comes back in the completion.
    pub id: WrId,
    /// The way to the receiver's port.
    pub to: AddressVector,
    /// The receiver's queue pair.
    pub remote_qp: QpNum,
    /// The receiver's Q_Key; a [controlled](QKey::is_controlled) one stands for the sender's own.
    pub qkey: QKey,
    /// The message: at most one packet.
    pub data: Payload<'a>,
    /// Immediate data, given to the receiver in its completion.
    pub imm: Option<u32>,
    /// Whether success makes a completion (failure always does).
    pub signaled: bool,
    /// Asks the receiver to raise a solicited event.
    pub solicited: bool,
}

/// Bytes before each datagram in the buffer of its receive (specification 11.4.1.2): a GRH, or on RoCEv2 over IPv4
/// zeros and then the IPv4 header in the last 20. They count in [`Completion::byte_len`](crate::Completion::byte_len).
pub const GRH_LEN: u32 = 40;

/// A receive work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub id: WrId,
    /// Where a SEND goes, in order. Empty for one that only takes the immediate of a WRITE. A datagram goes behind
    /// [`GRH_LEN`] bytes.
    pub scatter: &'a [Sge],
}
