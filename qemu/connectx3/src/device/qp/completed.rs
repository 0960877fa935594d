//! The completions of a queue pair, and the entries that report them.

use super::datagram::Origin;
use super::syndrome::{MEMORY_MANAGEMENT, failure};
use super::wqe::Control;
use crate::device::cq::Cqe;
use crate::device::layout::cqe;
use crate::device::memory::{LocalWork, Refused};
use roce::transport::Completions;
use verbs::{Completion, RemoteKey, Status, WorkKind, WrId};

/// Completions of one queue pair, as the transport reports them.
#[derive(Default)]
pub(crate) struct Completed {
    /// The completions, each with whether it belongs to the send queue.
    pub list: Vec<(Completion, bool)>,
    /// True if the packet being handled requests an event.
    pub solicited: bool,
    /// The origin of the datagram being handled.
    pub origin: Option<Origin>,
    /// True for an XRC queue pair: receives complete in the completion queue of their shared queue, and the
    /// entry names the shared queue.
    pub extended: bool,
}

impl Completions for Completed {
    fn send_ended(&mut self, completion: &Completion, report: bool) {
        if report {
            self.list.push((*completion, true));
        }
    }

    fn recv_ended(&mut self, completion: &Completion) {
        self.list.push((*completion, false));
    }
}

/// Returns a work request's identifier: its index in the ring and its opcode.
pub(crate) fn name(index: u16, opcode: u8) -> WrId {
    WrId(u64::from(index) | u64::from(opcode) << 16)
}

/// Returns the identifier of a receive from a shared queue: its index in the queue, and the queue's number.
pub(crate) fn shared_name(index: u16, srqn: u32) -> WrId {
    WrId(u64::from(index) | u64::from(srqn) << 32)
}

/// Returns the index in a work request's identifier.
pub(crate) const fn index_of(id: WrId) -> u16 {
    id.0 as u16
}

/// Returns the shared queue in the identifier of a receive from such a queue.
#[must_use]
pub(crate) const fn srqn_of(id: WrId) -> u32 {
    (id.0 >> 32) as u32
}

impl Completed {
    /// Returns the completion queue entry of a completion.
    #[must_use]
    pub(crate) fn cqe(&self, qpn: u32, completion: &Completion, send: bool) -> Cqe {
        let mut entry = entry(qpn, completion, send);
        if self.extended && !send {
            entry = entry.with(cqe::SRQN, srqn_of(completion.id));
        }
        if send || completion.status != Status::Success {
            return entry;
        }
        let entry = entry.solicited(self.solicited);
        match (self.origin, completion.src_qp) {
            (Some(origin), Some(from)) => origin.put(entry, from, completion.imm.is_some()),
            _ => entry,
        }
    }
}

fn entry(qpn: u32, completion: &Completion, send: bool) -> Cqe {
    let (index, opcode) = (index_of(completion.id), (completion.id.0 >> 16) as u8);
    if completion.status != Status::Success {
        return failure(qpn, index, send, completion.status);
    }
    if send {
        return Cqe::new(qpn, index, true, opcode).with(cqe::LENGTH, completion.byte_len);
    }
    const WRITE_IMM: u8 = 0;
    const SEND: u8 = 1;
    const SEND_IMM: u8 = 2;
    const SEND_INVALIDATE: u8 = 3;
    let (opcode, word) = match (completion.kind, completion.imm, completion.invalidated) {
        (WorkKind::RecvWriteImm, imm, _) => (WRITE_IMM, imm.unwrap_or(0)),
        (_, Some(imm), _) => (SEND_IMM, imm),
        (_, _, Some(RemoteKey(key))) => (SEND_INVALIDATE, key),
        _ => (SEND, 0),
    };
    Cqe::new(qpn, index, false, opcode).with(cqe::IMMEDIATE, word).with(cqe::LENGTH, completion.byte_len)
}

/// Work that the card executes itself, in order with the other work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    /// The work request's index.
    pub index: u16,
    /// The work request's control segment.
    pub control: Control,
    /// The work.
    pub work: LocalWork,
}

/// Returns the entry for work that the card has executed itself, or `None` if no completion was requested.
#[must_use]
pub(crate) fn local_cqe(qpn: u32, local: &Local, result: Result<(), Refused>) -> Option<Cqe> {
    match result {
        Ok(()) => local.control.signaled().then(|| Cqe::new(qpn, local.index, true, local.control.code())),
        Err(_) => Some(Cqe::error(qpn, local.index, true, MEMORY_MANAGEMENT, 0)),
    }
}
