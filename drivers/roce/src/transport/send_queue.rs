//! The ring of send work requests, with their gather lists and inline payloads, allocated once.

use super::MAX_MESSAGE;
use alloc::boxed::Box;
use alloc::vec;
use platform::{IoAddr, Memory, MemoryError};
use verbs::{Payload, Psn, RemoteAddr, RemoteKey, SendOp, SendWr, Sge, VerbsError, WorkKind, WrId};

/// The operation of a work request, without its length and gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Send,
    SendInvalidate(RemoteKey),
    Write(RemoteAddr),
    Read(RemoteAddr),
    FetchAdd { result: IoAddr, remote: RemoteAddr, add: u64 },
    CompareSwap { result: IoAddr, remote: RemoteAddr, compare: u64, swap: u64 },
}

impl Op {
    /// Returns true if the responder keeps a resource for the operation and responds with data.
    pub(super) const fn is_rd_atomic(&self) -> bool {
        matches!(self, Self::Read(_) | Self::FetchAdd { .. } | Self::CompareSwap { .. })
    }

    pub(super) const fn kind(&self) -> WorkKind {
        match self {
            Self::Send | Self::SendInvalidate(_) => WorkKind::Send,
            Self::Write(_) => WorkKind::Write,
            Self::Read(_) => WorkKind::Read,
            Self::FetchAdd { .. } => WorkKind::FetchAdd,
            Self::CompareSwap { .. } => WorkKind::CompareSwap,
        }
    }
}

/// A queued work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wqe {
    pub(super) id: WrId,
    pub(super) op: Op,
    pub(super) imm: Option<u32>,
    /// The peer's shared receive queue, for an XRC queue pair.
    pub(super) srq: u32,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
    pub(super) fence: bool,
    inline: bool,
    sges: u8,
    /// The length of the message in bytes; 8 for an atomic.
    pub(super) len: u32,
    /// The PSN of the first packet of the work request.
    pub(super) first: Psn,
    /// The number of PSNs that the work request consumes, at least 1.
    pub(super) packets: u32,
}

const EMPTY: Wqe = Wqe {
    id: WrId(0),
    op: Op::Send,
    imm: None,
    srq: 0,
    signaled: false,
    solicited: false,
    fence: false,
    inline: false,
    sges: 0,
    len: 0,
    first: Psn::new(0),
    packets: 1,
};

/// The ring. Positions only grow; `head..tail` are queued.
pub(super) struct SendQueue {
    ring: Box<[Wqe]>,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    max_sge: usize,
    max_inline: usize,
    depth: u64,
    head: u64,
    tail: u64,
}

impl SendQueue {
    pub(super) fn new(depth: u32, max_sge: u32, max_inline: u32) -> Self {
        let slots = (depth as usize).next_power_of_two();
        let (max_sge, max_inline) = (max_sge as usize, max_inline as usize);
        Self {
            ring: vec![EMPTY; slots].into(),
            sges: vec![Sge { addr: IoAddr(0), len: 0 }; slots * max_sge].into(),
            inline: vec![0; slots * max_inline].into(),
            max_sge,
            max_inline,
            depth: u64::from(depth),
            head: 0,
            tail: 0,
        }
    }

    /// Returns the number of work requests that can be appended.
    pub(super) const fn room(&self) -> u32 {
        (self.depth - (self.tail - self.head)) as u32
    }

    pub(super) const fn head(&self) -> u64 {
        self.head
    }

    pub(super) const fn tail(&self) -> u64 {
        self.tail
    }

    fn slot(&self, position: u64) -> usize {
        // The length of the ring is a power of two.
        position as usize & (self.ring.len() - 1)
    }

    /// Returns the work request at `position`, if it is queued.
    pub(super) fn get(&self, position: u64) -> Option<&Wqe> {
        if position < self.head || position >= self.tail {
            return None;
        }
        self.ring.get(self.slot(position))
    }

    /// Returns the oldest work request.
    pub(super) fn front(&self) -> Option<&Wqe> {
        self.get(self.head)
    }

    /// Removes the oldest work request.
    pub(super) const fn pop(&mut self) {
        if self.head != self.tail {
            self.head += 1;
        }
    }

    /// Appends `work`, whose first PSN is `first`, and returns the number of PSNs that it consumes.
    pub(super) fn push(
        &mut self,
        work: &SendWr<'_>,
        first: Psn,
        mtu: usize,
        memory: &dyn Memory,
    ) -> Result<u32, VerbsError> {
        self.push_to(work, 0, first, mtu, memory)
    }

    /// Appends `work` as [`push`](Self::push) does, for a shared receive queue of an XRC queue pair's peer.
    pub(super) fn push_to(
        &mut self,
        work: &SendWr<'_>,
        srq: u32,
        first: Psn,
        mtu: usize,
        memory: &dyn Memory,
    ) -> Result<u32, VerbsError> {
        if self.tail - self.head >= self.depth {
            return Err(VerbsError::NoResources);
        }
        let result_sge;
        let (op, imm, payload) = match work.op {
            SendOp::Send { data, imm } => (Op::Send, imm, data),
            SendOp::SendInvalidate { data, key } => (Op::SendInvalidate(key), None, data),
            SendOp::Write { data, remote, imm } => (Op::Write(remote), imm, data),
            SendOp::Read { into, remote } => (Op::Read(remote), None, Payload::Gather(into)),
            SendOp::FetchAdd { result, remote, add } => {
                result_sge = [Sge { addr: result, len: 8 }];
                (Op::FetchAdd { result, remote, add }, None, Payload::Gather(&result_sge))
            }
            SendOp::CompareSwap { result, remote, compare, swap } => {
                result_sge = [Sge { addr: result, len: 8 }];
                (Op::CompareSwap { result, remote, compare, swap }, None, Payload::Gather(&result_sge))
            }
        };
        let slot = self.slot(self.tail);
        let (len, inline, sges) = match payload {
            Payload::Inline(bytes) => {
                let start = slot * self.max_inline;
                let to = self.inline.get_mut(start..start + self.max_inline);
                let to = to.and_then(|to| to.get_mut(..bytes.len())).ok_or(VerbsError::InvalidArgument)?;
                to.copy_from_slice(bytes);
                (bytes.len() as u32, true, 0)
            }
            Payload::Gather(list) => {
                let len = check_list(list, memory)?;
                let start = slot * self.max_sge;
                let to = self.sges.get_mut(start..start + self.max_sge);
                let to = to.and_then(|to| to.get_mut(..list.len())).ok_or(VerbsError::InvalidArgument)?;
                to.copy_from_slice(list);
                (len, false, list.len() as u8)
            }
        };
        let packets = match op {
            Op::Send | Op::SendInvalidate(_) | Op::Write(_) | Op::Read(_) => packets(len, mtu),
            Op::FetchAdd { .. } | Op::CompareSwap { .. } => 1,
        };
        let SendWr { id, signaled, solicited, fence, .. } = *work;
        if let Some(wqe) = self.ring.get_mut(slot) {
            *wqe = Wqe { id, op, imm, srq, signaled, solicited, fence, inline, sges, len, first, packets };
        }
        self.tail += 1;
        Ok(packets)
    }

    /// Copies bytes of the message at `position`, from `offset` on, into `out`.
    pub(super) fn gather(
        &self,
        position: u64,
        offset: u32,
        out: &mut [u8],
        memory: &dyn Memory,
    ) -> Result<(), MemoryError> {
        let wqe = self.get(position).ok_or(MemoryError::OutOfRange)?;
        if wqe.inline {
            let start = self.slot(position) * self.max_inline + offset as usize;
            let from = self.inline.get(start..start + out.len()).ok_or(MemoryError::OutOfRange)?;
            out.copy_from_slice(from);
            return Ok(());
        }
        let mut rest = out;
        for piece in Pieces::new(self.list(position, wqe), offset, rest.len()) {
            let (now, later) =
                rest.split_at_mut_checked(piece.len as usize).ok_or(MemoryError::OutOfRange)?;
            memory.read(piece.addr, now)?;
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(MemoryError::OutOfRange) }
    }

    /// Copies `data` into the buffers of the READ at `position`, from `offset` of the message on.
    pub(super) fn scatter(
        &self,
        position: u64,
        offset: u32,
        data: &[u8],
        memory: &dyn Memory,
    ) -> Result<(), MemoryError> {
        let wqe = self.get(position).ok_or(MemoryError::OutOfRange)?;
        scatter(self.list(position, wqe), offset, data, memory)
    }

    fn list(&self, position: u64, wqe: &Wqe) -> &[Sge] {
        let start = self.slot(position) * self.max_sge;
        self.sges.get(start..start + usize::from(wqe.sges)).unwrap_or(&[])
    }
}

/// Returns the number of packets of a message of `len` bytes.
pub(super) fn packets(len: u32, mtu: usize) -> u32 {
    len.div_ceil(mtu as u32).max(1)
}

/// Checks that a list is accessible memory, and returns the sum of its lengths.
pub(super) fn check_list(list: &[Sge], memory: &dyn Memory) -> Result<u32, VerbsError> {
    let mut total = 0u64;
    for sge in list {
        memory.check(sge.addr, u64::from(sge.len)).map_err(|_| VerbsError::LocalProtection)?;
        total += u64::from(sge.len);
    }
    if total > u64::from(MAX_MESSAGE) {
        return Err(VerbsError::InvalidArgument);
    }
    Ok(total as u32)
}

/// Copies `data` into a list, from `offset` on.
pub(super) fn scatter(
    list: &[Sge],
    offset: u32,
    data: &[u8],
    memory: &dyn Memory,
) -> Result<(), MemoryError> {
    let mut rest = data;
    for piece in Pieces::new(list, offset, rest.len()) {
        let (now, later) = rest.split_at_checked(piece.len as usize).ok_or(MemoryError::OutOfRange)?;
        memory.write(piece.addr, now)?;
        rest = later;
    }
    if rest.is_empty() { Ok(()) } else { Err(MemoryError::OutOfRange) }
}

/// The pieces of a list that contain `len` bytes from `offset` on.
struct Pieces<'a> {
    list: core::slice::Iter<'a, Sge>,
    skip: u64,
    left: u64,
}

impl<'a> Pieces<'a> {
    fn new(list: &'a [Sge], offset: u32, len: usize) -> Self {
        Self { list: list.iter(), skip: u64::from(offset), left: len as u64 }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Sge;

    fn next(&mut self) -> Option<Sge> {
        while self.left > 0 {
            let sge = self.list.next()?;
            let have = u64::from(sge.len);
            if self.skip >= have {
                self.skip -= have;
                continue;
            }
            let addr = sge.addr.checked_add(self.skip)?;
            let len = (have - self.skip).min(self.left);
            self.skip = 0;
            self.left -= len;
            return Some(Sge { addr, len: len as u32 });
        }
        None
    }
}
