//! An entry of a completion queue (Linux `include/linux/mlx4/cq.h`, PRM `completion_queue_entry`). Any bytes are one.

use verbs::{QpNum, Status, WorkKind};

/// Its 32 bytes as big-endian double words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cqe(pub(crate) [u64; 4]);

/// Opcode of an entry that tells of an error.
const ERROR: u8 = 0x1e;
/// Bit beside the opcode: of the send queue.
const SEND: u64 = 0x40;

/// What an entry says that work has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Received {
    /// The immediate of a WRITE.
    WriteImm,
    /// A SEND.
    Send,
    /// A SEND with an immediate.
    SendImm,
    /// A SEND that took a key away.
    SendInvalidate,
}

impl Cqe {
    /// The queue pair.
    #[inline]
    pub(crate) const fn qp(&self) -> QpNum {
        QpNum::new((self.0[0] >> 32) as u32)
    }
    /// Immediate data, or the key that was taken away.
    pub(crate) const fn immediate(&self) -> u32 {
        self.0[0] as u32
    }
    /// The queue pair that sent a datagram.
    pub(crate) const fn remote_qp(&self) -> QpNum {
        QpNum::new((self.0[1] >> 32) as u32)
    }
    /// Where a datagram of InfiniBand came from: its LID, and the service level.
    pub(crate) const fn origin(&self) -> (u16, u8) {
        (self.0[1] as u16, (self.0[1] >> 28) as u8 & 0xf)
    }
    /// Bytes.
    pub(crate) const fn len(&self) -> u32 {
        self.0[2] as u32
    }
    /// The work request's index, as its queue counts.
    #[inline]
    pub(crate) const fn index(&self) -> u16 {
        (self.0[3] >> 48) as u16
    }
    /// Whether it is of the send queue.
    #[inline]
    pub(crate) const fn is_send(&self) -> bool {
        self.0[3] & SEND != 0
    }
    /// The opcode.
    #[inline]
    pub(crate) const fn opcode(&self) -> u8 {
        (self.0[3] & 0x1f) as u8
    }
    /// How the work ended.
    #[inline]
    pub(crate) const fn status(&self) -> Status {
        if self.opcode() == ERROR { status((self.0[3] >> 32) as u8) } else { Status::Success }
    }
    /// What a receive has taken. `None`: no opcode of a receive.
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

/// What work the opcode of a work request is, which its entry repeats. `None`: none that the driver posts.
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
    use crate::wqe::opcode as op;
    Some(match opcode {
        op::WRITE | op::WRITE_IMM => WorkKind::Write,
        op::SEND | op::SEND_IMM | op::SEND_INVALIDATE => WorkKind::Send,
        op::READ => WorkKind::Read,
        op::FETCH_ADD => WorkKind::FetchAdd,
        op::COMPARE_SWAP => WorkKind::CompareSwap,
        _ => return None,
    })
}

/// What a syndrome means. One that no source names is taken for a fault of this side.
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
