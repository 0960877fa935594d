//! The packets of a work request.

use super::qp::{Source, Tx};
use super::send_queue::{Op, Wqe};
use crate::wire::{AtomicEth, Bth, Ext, Opcode, Operation, Reth};
use platform::IoAddr;
use verbs::{Psn, QpNum, RemoteAddr};

/// A request packet to be made.
pub(super) struct Request<'a> {
    pub(super) wqe: &'a Wqe,
    /// The position of the work request in the queue.
    pub(super) position: u64,
    pub(super) psn: Psn,
    /// The number of packets of this work request that precede the packet.
    pub(super) done: u32,
    /// The number of PSNs that the packet consumes.
    pub(super) packets: u32,
    pub(super) ack_request: bool,
    pub(super) mtu: usize,
    pub(super) remote_qp: QpNum,
}

impl Request<'_> {
    /// Returns the packet.
    pub(super) fn tx(&self) -> Tx {
        let wqe = self.wqe;
        let offset = self.done * self.mtu as u32;
        let rest = wqe.len - offset;
        match wqe.op {
            Op::Send | Op::SendInvalidate(_) | Op::Write(_) => self.data(offset, rest.min(self.mtu as u32)),
            Op::Read(remote) => {
                let len = rest.min(self.packets * self.mtu as u32);
                let ext = Ext::Reth(Reth { addr: offset_addr(remote, offset), key: remote.key, len });
                self.build(Operation::ReadRequest, ext, 0, 0)
            }
            Op::FetchAdd { remote, add, .. } => {
                let ext = AtomicEth { addr: remote.addr, key: remote.key, swap_add: add, compare: 0 };
                self.build(Operation::FetchAdd, Ext::Atomic(ext), 0, 0)
            }
            Op::CompareSwap { remote, compare, swap, .. } => {
                let ext = AtomicEth { addr: remote.addr, key: remote.key, swap_add: swap, compare };
                self.build(Operation::CompareSwap, Ext::Atomic(ext), 0, 0)
            }
        }
    }

    /// Makes a packet of a SEND or WRITE.
    fn data(&self, offset: u32, len: u32) -> Tx {
        use Operation as O;
        let wqe = self.wqe;
        let (first, last) = (self.done == 0, self.done + 1 == wqe.packets);
        let imm = wqe.imm.filter(|_| last);
        let mut ext = match wqe.op {
            Op::SendInvalidate(key) if last => Ext::Invalidate(key),
            _ => imm.map_or(Ext::None, Ext::Imm),
        };
        let operation = if let Op::Write(remote) = wqe.op {
            if first {
                let reth = Reth { addr: remote.addr, key: remote.key, len: wqe.len };
                ext = imm.map_or(Ext::Reth(reth), |imm| Ext::RethImm(reth, imm));
            }
            match (first, last, imm.is_some()) {
                (true, false, _) => O::WriteFirst,
                (false, false, _) => O::WriteMiddle,
                (false, true, false) => O::WriteLast,
                (false, true, true) => O::WriteLastImm,
                (true, true, false) => O::WriteOnly,
                (true, true, true) => O::WriteOnlyImm,
            }
        } else {
            match (first, last, &ext) {
                (true, false, _) => O::SendFirst,
                (false, false, _) => O::SendMiddle,
                (false, true, Ext::Invalidate(_)) => O::SendLastInvalidate,
                (false, true, Ext::Imm(_)) => O::SendLastImm,
                (false, true, _) => O::SendLast,
                (true, true, Ext::Invalidate(_)) => O::SendOnlyInvalidate,
                (true, true, Ext::Imm(_)) => O::SendOnlyImm,
                (true, true, _) => O::SendOnly,
            }
        };
        let mut tx = self.build(operation, ext, offset, len);
        tx.bth.solicited = wqe.solicited && last;
        tx
    }

    fn build(&self, operation: Operation, ext: Ext, offset: u32, len: u32) -> Tx {
        let mut bth = Bth::new(Opcode::rc(operation), self.remote_qp, self.psn);
        bth.ack_request = self.ack_request;
        let source = Source::Request { position: self.position, offset, packets: self.packets };
        Tx { bth, ext, len: len as usize, source }
    }
}

/// Returns the address `offset` bytes into a remote range. It may wrap; the peer then refuses it.
const fn offset_addr(remote: RemoteAddr, offset: u32) -> IoAddr {
    IoAddr(remote.addr.0.wrapping_add(offset as u64))
}
