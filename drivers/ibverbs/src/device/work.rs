//! Work requests and completions in libibverbs' form.

use super::raw::QueuePair;
use crate::ring::RingIndex;
use crate::{Arena, ring};
use platform::Memory as _;
use rdma_mummy_sys as ibv;
use std::io;
use std::mem::{self, MaybeUninit};
use std::ptr;
use verbs::{Payload, RecvWr, SendOp, SendWr, Sge, Status, VerbsError, WorkKind, WrId};

/// The maximum number of work requests posted in one call.
pub(super) const BATCH: usize = 16;
/// The maximum number of elements in a scatter or gather list, whatever the device supports.
pub(super) const MAX_SGE: usize = 8;

/// Flag in the identifier of a receive work request; the other bits are its index in the ring.
const RECV: u64 = 1 << 63;

/// Returns the 64-bit identifier of a send work request, from its index in the ring.
pub(super) fn send_number(index: RingIndex) -> u64 {
    index.0
}

/// Returns the 64-bit identifier of a receive work request, from its index in the ring.
pub(super) fn recv_number(index: RingIndex) -> u64 {
    index.0 | RECV
}

/// Returns true for a receive work request, and the index in its ring.
pub(super) fn index_of(number: u64) -> (bool, RingIndex) {
    (number & RECV != 0, ring::RingIndex(number & !RECV))
}

/// The record of a posted send work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendRecord {
    pub id: WrId,
    pub kind: WorkKind,
    /// The length of the message, in bytes.
    pub len: u32,
}

impl Default for SendRecord {
    fn default() -> Self {
        Self { id: WrId::default(), kind: WorkKind::Send, len: 0 }
    }
}

/// The limits that a work request is checked against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits<'a> {
    pub arena: &'a Arena,
    pub lkey: u32,
    pub max_sge: usize,
    pub max_inline: usize,
    /// The maximum length of a message, in bytes.
    pub max_message: u32,
}

/// The lists of elements of some work requests, one after the other.
struct Lists {
    elements: [MaybeUninit<ibv::ibv_sge>; BATCH * MAX_SGE],
    used: usize,
}

impl Lists {
    fn new() -> Self {
        Self { elements: [MaybeUninit::uninit(); BATCH * MAX_SGE], used: 0 }
    }

    /// Appends an element to the present list.
    fn add(&mut self, addr: u64, length: u32, lkey: u32) -> Result<(), VerbsError> {
        let sge = self.elements.get_mut(self.used).ok_or(VerbsError::InvalidArgument)?;
        sge.write(ibv::ibv_sge { addr, length, lkey });
        self.used += 1;
        Ok(())
    }

    /// Appends a checked list. Returns the numbers of elements and bytes. Elements without bytes are left
    /// out, because for some cards a length of 0 means 2^31.
    fn add_all(&mut self, list: &[Sge], limits: &Limits<'_>) -> Result<(i32, u32), VerbsError> {
        if list.len() > limits.max_sge {
            return Err(VerbsError::InvalidArgument);
        }
        let (mut count, mut total) = (0, 0u32);
        for sge in list.iter().filter(|sge| sge.len > 0) {
            limits.arena.check(sge.addr, u64::from(sge.len)).map_err(|_| VerbsError::LocalProtection)?;
            total = total.checked_add(sge.len).ok_or(VerbsError::InvalidArgument)?;
            self.add(sge.addr.0, sge.len, limits.lkey)?;
            count += 1;
        }
        if total > limits.max_message {
            return Err(VerbsError::InvalidArgument);
        }
        Ok((count, total))
    }

    /// Returns the address of the list that begins at element `from`.
    fn at(&mut self, from: usize) -> *mut ibv::ibv_sge {
        self.elements.as_mut_ptr().wrapping_add(from).cast()
    }
}

/// Send work in libibverbs' form, for one call.
pub(super) struct SendChain {
    work: [MaybeUninit<ibv::ibv_send_wr>; BATCH],
    /// The index of the first element of each list.
    lists_at: [usize; BATCH],
    len: usize,
    lists: Lists,
}

impl SendChain {
    pub(super) fn new() -> Self {
        let work = [const { MaybeUninit::uninit() }; BATCH];
        Self { work, lists_at: [0; BATCH], len: 0, lists: Lists::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn clear(&mut self) {
        (self.len, self.lists.used) = (0, 0);
    }

    /// Appends `work` to the list of requests to post. Returns the record that completes it.
    pub(super) fn add(
        &mut self,
        work: &SendWr<'_>,
        index: RingIndex,
        limits: &Limits<'_>,
    ) -> Result<SendRecord, VerbsError> {
        let lists_from = self.lists.used;
        let added = self.try_add(work, index, limits);
        if added.is_err() {
            self.lists.used = lists_from;
        }
        added
    }

    fn try_add(
        &mut self,
        work: &SendWr<'_>,
        index: RingIndex,
        limits: &Limits<'_>,
    ) -> Result<SendRecord, VerbsError> {
        use ibv::ibv_send_flags as flag;
        let lists_from = self.lists.used;
        // SAFETY: numbers, null pointers, and unions of numbers and null pointers.
        let mut wr: ibv::ibv_send_wr = unsafe { mem::zeroed() };
        wr.wr_id = send_number(index);
        let mut result = [Sge { addr: platform::IoAddr(0), len: 8 }];
        let (kind, payload) = set_operation(&mut wr, &work.op, &mut result);
        let len = self.add_payload(&mut wr, payload, limits)?;
        for (wanted, bit) in [
            (work.signaled, flag::IBV_SEND_SIGNALED),
            (work.solicited, flag::IBV_SEND_SOLICITED),
            (work.fence, flag::IBV_SEND_FENCE),
        ] {
            wr.send_flags |= if wanted { bit.0 } else { 0 };
        }
        let (Some(slot), Some(at)) = (self.work.get_mut(self.len), self.lists_at.get_mut(self.len)) else {
            return Err(VerbsError::NoResources);
        };
        slot.write(wr);
        *at = lists_from;
        self.len += 1;
        Ok(SendRecord { id: work.id, kind, len })
    }

    /// Appends the list of a payload for `wr`, and returns its length in bytes.
    fn add_payload(
        &mut self,
        wr: &mut ibv::ibv_send_wr,
        payload: Payload<'_>,
        limits: &Limits<'_>,
    ) -> Result<u32, VerbsError> {
        match payload {
            Payload::Inline(bytes) => {
                let len = u32::try_from(bytes.len()).map_err(|_| VerbsError::InvalidArgument)?;
                if bytes.len() > limits.max_inline {
                    return Err(VerbsError::InvalidArgument);
                }
                if len > 0 {
                    // The posting call copies the bytes.
                    self.lists.add(bytes.as_ptr() as u64, len, 0)?;
                    wr.num_sge = 1;
                    wr.send_flags |= ibv::ibv_send_flags::IBV_SEND_INLINE.0;
                }
                Ok(len)
            }
            Payload::Gather(list) => {
                let (count, len) = self.lists.add_all(list, limits)?;
                wr.num_sge = count;
                Ok(len)
            }
        }
    }

    /// Posts the chain. An error includes the number of requests posted.
    ///
    /// # Safety
    /// The inline payloads of all requests added since the last `clear` must still be valid.
    pub(super) unsafe fn post(&mut self, qp: &QueuePair) -> Result<(), (usize, io::Error)> {
        if self.len == 0 {
            return Ok(());
        }
        let first: *mut ibv::ibv_send_wr = self.work.as_mut_ptr().cast();
        for (n, from) in self.lists_at.iter().take(self.len).enumerate() {
            let last = n + 1 == self.len;
            // SAFETY: the first `len` elements have been written, and `first` is the array's.
            let wr = unsafe { &mut *first.add(n) };
            wr.next = if last { ptr::null_mut() } else { first.wrapping_add(n + 1) };
            wr.sg_list = self.lists.at(*from);
        }
        // SAFETY: a chain in one array. Its lists are in the arena, which the device may access until the
        // region is deregistered with the RNIC, or inline and then valid by the caller's guarantee.
        unsafe { qp.post_send(first) }
    }
}

/// Sets the opcode and the operands of `wr`. Returns the kind of the work and its payload, which for an
/// atomic is the list in `result`.
fn set_operation<'a>(
    wr: &mut ibv::ibv_send_wr,
    op: &SendOp<'a>,
    result: &'a mut [Sge; 1],
) -> (WorkKind, Payload<'a>) {
    use ibv::ibv_wr_opcode as opcode;
    match *op {
        SendOp::Send { data, imm } => {
            wr.opcode = with_imm(wr, imm, opcode::IBV_WR_SEND, opcode::IBV_WR_SEND_WITH_IMM);
            (WorkKind::Send, data)
        }
        SendOp::SendInvalidate { data, key } => {
            wr.opcode = opcode::IBV_WR_SEND_WITH_INV;
            wr.imm_data_invalidated_rkey_union.invalidated_rkey = key.0;
            (WorkKind::Send, data)
        }
        SendOp::Write { data, remote, imm } => {
            wr.opcode = with_imm(wr, imm, opcode::IBV_WR_RDMA_WRITE, opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
            wr.wr.rdma = ibv::rdma_t { remote_addr: remote.addr.0, rkey: remote.key.0 };
            (WorkKind::Write, data)
        }
        SendOp::Read { into, remote } => {
            wr.opcode = opcode::IBV_WR_RDMA_READ;
            wr.wr.rdma = ibv::rdma_t { remote_addr: remote.addr.0, rkey: remote.key.0 };
            (WorkKind::Read, Payload::Gather(into))
        }
        SendOp::FetchAdd { result: at, remote, add } => {
            wr.opcode = opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
            let (remote_addr, rkey) = (remote.addr.0, remote.key.0);
            wr.wr.atomic = ibv::atomic_t { remote_addr, compare_add: add, swap: 0, rkey };
            *result = [Sge { addr: at, len: 8 }];
            (WorkKind::FetchAdd, Payload::Gather(result))
        }
        SendOp::CompareSwap { result: at, remote, compare, swap } => {
            wr.opcode = opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
            let (remote_addr, rkey) = (remote.addr.0, remote.key.0);
            wr.wr.atomic = ibv::atomic_t { remote_addr, compare_add: compare, swap, rkey };
            *result = [Sge { addr: at, len: 8 }];
            (WorkKind::CompareSwap, Payload::Gather(result))
        }
    }
}

/// Sets immediate data, if there is any, and returns the opcode with or without it.
fn with_imm(wr: &mut ibv::ibv_send_wr, imm: Option<u32>, without: u32, with: u32) -> u32 {
    let Some(imm) = imm else { return without };
    wr.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
    with
}

/// Receive work in libibverbs' form, for one call.
pub(super) struct RecvChain {
    work: [MaybeUninit<ibv::ibv_recv_wr>; BATCH],
    lists_at: [usize; BATCH],
    len: usize,
    lists: Lists,
}

impl RecvChain {
    pub(super) fn new() -> Self {
        let work = [const { MaybeUninit::uninit() }; BATCH];
        Self { work, lists_at: [0; BATCH], len: 0, lists: Lists::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn clear(&mut self) {
        (self.len, self.lists.used) = (0, 0);
    }

    /// Appends `work`, and returns its identifier.
    pub(super) fn add(
        &mut self,
        work: &RecvWr<'_>,
        index: RingIndex,
        limits: &Limits<'_>,
    ) -> Result<WrId, VerbsError> {
        let lists_from = self.lists.used;
        let list = self.lists.add_all(work.scatter, limits);
        let (Ok((num_sge, _)), Some(slot), Some(at)) =
            (list, self.work.get_mut(self.len), self.lists_at.get_mut(self.len))
        else {
            self.lists.used = lists_from;
            return Err(list.err().unwrap_or(VerbsError::NoResources));
        };
        slot.write(ibv::ibv_recv_wr {
            wr_id: recv_number(index),
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge,
        });
        *at = lists_from;
        self.len += 1;
        Ok(work.id)
    }

    /// Posts the chain. An error includes the number of requests posted.
    pub(super) fn post(&mut self, qp: &QueuePair) -> Result<(), (usize, io::Error)> {
        if self.len == 0 {
            return Ok(());
        }
        let first: *mut ibv::ibv_recv_wr = self.work.as_mut_ptr().cast();
        for (n, from) in self.lists_at.iter().take(self.len).enumerate() {
            let last = n + 1 == self.len;
            // SAFETY: the first `len` elements have been written, and `first` is the array's.
            let wr = unsafe { &mut *first.add(n) };
            wr.next = if last { ptr::null_mut() } else { first.wrapping_add(n + 1) };
            wr.sg_list = self.lists.at(*from);
        }
        // SAFETY: a chain in one array. Its lists are in the arena, which the device may access until the
        // region is deregistered.
        unsafe { qp.post_recv(first) }
    }
}

/// Converts a status of libibverbs. Those without an equivalent become a local error of the queue pair.
pub(super) fn status_of(status: ibv::ibv_wc_status::Type) -> Status {
    use ibv::ibv_wc_status as s;
    match status {
        s::IBV_WC_SUCCESS => Status::Success,
        s::IBV_WC_LOC_LEN_ERR => Status::LocalLengthError,
        s::IBV_WC_LOC_PROT_ERR | s::IBV_WC_LOC_ACCESS_ERR => Status::LocalProtectionError,
        s::IBV_WC_WR_FLUSH_ERR => Status::WorkRequestFlushed,
        s::IBV_WC_BAD_RESP_ERR => Status::BadResponse,
        s::IBV_WC_REM_INV_REQ_ERR | s::IBV_WC_REM_INV_RD_REQ_ERR => Status::RemoteInvalidRequest,
        s::IBV_WC_REM_ACCESS_ERR => Status::RemoteAccessError,
        s::IBV_WC_REM_OP_ERR | s::IBV_WC_REM_ABORT_ERR => Status::RemoteOperationError,
        s::IBV_WC_RETRY_EXC_ERR | s::IBV_WC_RESP_TIMEOUT_ERR => Status::RetryExceeded,
        s::IBV_WC_RNR_RETRY_EXC_ERR => Status::RnrRetryExceeded,
        _ => Status::LocalQpOperationError,
    }
}

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
