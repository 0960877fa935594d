//! An entry of a completion queue (Linux `include/linux/mlx4/cq.h`, PRM `completion_queue_entry`). All bit
//! patterns are valid.

use verbs::{QpNum, Status, WorkKind};

/// The 32 bytes of an entry as big-endian 64-bit words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cqe(pub(crate) [u64; 4]);

/// The opcode of an error entry.
const ERROR: u8 = 0x1e;
/// The bit next to the opcode that marks an entry of the send queue.
const SEND: u64 = 0x40;

/// The operation of the peer that consumed a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Received {
    /// A WRITE with immediate data.
    WriteImm,
    /// A SEND.
    Send,
    /// A SEND with immediate data.
    SendImm,
    /// A SEND that invalidated a key.
    SendInvalidate,
}

impl Cqe {
    /// Returns the queue pair.
    #[inline]
    pub(crate) const fn qp(&self) -> QpNum {
        QpNum::new((self.0[0] >> 32) as u32)
    }
    /// Returns the immediate data, or the key that was invalidated.
    pub(crate) const fn immediate(&self) -> u32 {
        self.0[0] as u32
    }
    /// Returns the queue pair that sent a datagram.
    pub(crate) const fn remote_qp(&self) -> QpNum {
        QpNum::new((self.0[1] >> 32) as u32)
    }
    /// Returns the LID and the service level of the sender of an InfiniBand datagram.
    pub(crate) const fn origin(&self) -> (u16, u8) {
        (self.0[1] as u16, (self.0[1] >> 28) as u8 & 0xf)
    }
    /// Returns the number of bytes that were transferred.
    pub(crate) const fn len(&self) -> u32 {
        self.0[2] as u32
    }
    /// Returns the low 16 bits of the work request's index.
    #[inline]
    pub(crate) const fn index(&self) -> u16 {
        (self.0[3] >> 48) as u16
    }
    /// Returns true for an entry of the send queue.
    #[inline]
    pub(crate) const fn is_send(&self) -> bool {
        self.0[3] & SEND != 0
    }
    /// Returns the opcode.
    #[inline]
    pub(crate) const fn opcode(&self) -> u8 {
        (self.0[3] & 0x1f) as u8
    }
    /// Returns the result of the work request.
    #[inline]
    pub(crate) const fn status(&self) -> Status {
        if self.opcode() == ERROR { status((self.0[3] >> 32) as u8) } else { Status::Success }
    }
    /// Returns the operation that consumed a receive, or `None` for an opcode that no receive has.
    pub(crate) const fn received(&self) -> Option<Received> {
        Some(match self.opcode() {
            0x00 => Received::WriteImm,
            0x01 => Received::Send,
            0x02 => Received::SendImm,
            0x03 => Received::SendInvalidate,
            _ => return None,
        })
    }
}

/// Returns the kind of work for a work request's opcode, which its entry repeats. `None`: the driver posts no
/// such opcode.
#[inline]
pub(crate) fn sent(opcode: u8) -> Option<WorkKind> {
    const KINDS: [Option<WorkKind>; 32] = {
        let mut kinds = [None; 32];
        let mut opcode = 0;
        while opcode < kinds.len() {
            kinds[opcode] = kind(opcode as u8);
            opcode += 1;
        }
        kinds
    };
    KINDS.get(usize::from(opcode)).copied().flatten()
}

const fn kind(opcode: u8) -> Option<WorkKind> {
    use crate::datapath::wqe::opcode as op;
    Some(match opcode {
        op::WRITE | op::WRITE_IMM => WorkKind::Write,
        op::SEND | op::SEND_IMM | op::SEND_INVALIDATE => WorkKind::Send,
        op::READ => WorkKind::Read,
        op::FETCH_ADD => WorkKind::FetchAdd,
        op::COMPARE_SWAP => WorkKind::CompareSwap,
        _ => return None,
    })
}

/// Returns the status for a syndrome. An unknown syndrome counts as a local fault.
#[cold]
const fn status(syndrome: u8) -> Status {
    match syndrome {
        0x01 => Status::LocalLengthError,
        0x04 | 0x06 | 0x11 => Status::LocalProtectionError,
        0x05 => Status::WorkRequestFlushed,
        0x10 => Status::BadResponse,
        0x12 => Status::RemoteInvalidRequest,
        0x13 => Status::RemoteAccessError,
        0x14 | 0x22 => Status::RemoteOperationError,
        0x15 => Status::RetryExceeded,
        0x16 => Status::RnrRetryExceeded,
        _ => Status::LocalQpOperationError,
    }
}
