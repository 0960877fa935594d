//! A reliable connected queue pair: its states, its two queues, and the interpretation of their completions.

use super::cq::Cq;
use super::port::Port;
use super::raw::{ACCESS, QueuePair};
use super::work::{BATCH, Limits, RecvChain, SendChain, SendRecord, index_of, status_of};
use crate::codes::{ack_timeout, mtu_code};
use crate::ring::Ring;
use crate::sync::lock;
use rdma_mummy_sys as ibv;
use roce::wire::RnrTimer;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use verbs::{Completion, QpConnect, QpNum, RecvWr, RemoteKey, SendWr, Status, VerbsError, WorkKind, WrId};

/// A queue pair, until it is destroyed.
#[derive(Debug)]
pub(super) struct Qp {
    number: QpNum,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    send: Mutex<Queue<SendRecord>>,
    recv: Mutex<Queue<WrId>>,
    /// The device's queue pair after a failed destruction. Nothing can be posted to it any more.
    undestroyed: Mutex<Option<QueuePair>>,
    /// True if work has failed, so that the queue pair is in the error state.
    failed: AtomicBool,
}

/// The send queue or the receive queue.
#[derive(Debug)]
struct Queue<T> {
    /// The device's queue pair; `None` once it is being destroyed.
    raw: Option<Arc<QueuePair>>,
    /// True if the queue pair has been connected; only used in the send queue.
    connected: bool,
    ring: Ring<T>,
}

/// Converts the error of a call about a queue pair.
pub(super) fn verbs_error(error: &io::Error) -> VerbsError {
    use rustix::io::Errno;
    match Errno::from_io_error(error) {
        Some(Errno::NOMEM | Errno::AGAIN | Errno::NOBUFS) => VerbsError::NoResources,
        Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM) => VerbsError::InvalidArgument,
        Some(Errno::TIMEDOUT | Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN) => {
            VerbsError::Unreachable
        }
        _ => VerbsError::DeviceFailed,
    }
}

/// Returns attributes with all fields zero.
fn no_attributes() -> ibv::ibv_qp_attr {
    // SAFETY: numbers only, and a union of bytes.
    unsafe { mem::zeroed() }
}

impl Qp {
    /// Takes a new queue pair to INIT, where receives may be posted.
    pub(super) fn new(
        raw: QueuePair,
        (send_cq, send_depth): (Arc<Cq>, u32),
        (recv_cq, recv_depth): (Arc<Cq>, u32),
        port: u8,
    ) -> io::Result<Self> {
        use ibv::ibv_qp_attr_mask as mask;
        let mut attributes = no_attributes();
        attributes.qp_state = ibv::ibv_qp_state::IBV_QPS_INIT;
        attributes.port_num = port;
        attributes.qp_access_flags = ACCESS;
        raw.modify(
            &mut attributes,
            mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS,
        )?;
        let raw = Arc::new(raw);
        Ok(Self {
            number: QpNum::new(raw.number()),
            send_cq,
            recv_cq,
            send: Mutex::new(Queue { raw: Some(raw.clone()), connected: false, ring: Ring::new(send_depth) }),
            recv: Mutex::new(Queue { raw: Some(raw), connected: false, ring: Ring::new(recv_depth) }),
            undestroyed: Mutex::new(None),
            failed: AtomicBool::new(false),
        })
    }

    /// Returns the queue pair's number.
    pub(super) fn number(&self) -> QpNum {
        self.number
    }

    /// Returns the completion queues of the send queue and of the receive queue.
    pub(super) fn cqs(&self) -> [&Arc<Cq>; 2] {
        [&self.send_cq, &self.recv_cq]
    }

    /// Takes the queue pair through RTR to RTS.
    pub(super) fn connect(&self, connect: &QpConnect, port: &Port) -> Result<(), VerbsError> {
        use ibv::ibv_qp_attr_mask as mask;
        let mut send = lock(&self.send);
        let raw = send.raw.clone().ok_or(VerbsError::NotFound)?;
        if send.connected {
            return Err(VerbsError::InvalidState);
        }
        if connect.max_rd_atomic > port.max_rd_atomic
            || connect.mtu > port.max_mtu
            || connect.retries > 7
            || connect.rnr_retries > 7
        {
            return Err(VerbsError::InvalidArgument);
        }
        let mut to_rtr = no_attributes();
        to_rtr.qp_state = ibv::ibv_qp_state::IBV_QPS_RTR;
        to_rtr.ah_attr = port.path(connect).ok_or(VerbsError::InvalidArgument)?;
        to_rtr.path_mtu = mtu_code(connect.mtu);
        to_rtr.dest_qp_num = connect.remote_qp.get();
        to_rtr.rq_psn = connect.recv_psn.get();
        to_rtr.max_dest_rd_atomic = port.max_rd_atomic;
        to_rtr.min_rnr_timer = RnrTimer::at_least(connect.min_rnr_delay).code();
        let rtr = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        raw.modify(&mut to_rtr, rtr).map_err(|e| verbs_error(&e))?;
        let mut to_rts = no_attributes();
        to_rts.qp_state = ibv::ibv_qp_state::IBV_QPS_RTS;
        to_rts.timeout = ack_timeout(connect.ack_timeout);
        to_rts.retry_cnt = connect.retries;
        to_rts.rnr_retry = connect.rnr_retries;
        to_rts.sq_psn = connect.send_psn.get();
        to_rts.max_rd_atomic = connect.max_rd_atomic;
        let rts = mask::IBV_QP_STATE
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        raw.modify(&mut to_rts, rts).map_err(|e| verbs_error(&e))?;
        send.connected = true;
        Ok(())
    }

    /// Posts send work, with the results of `Rnic::post_send`.
    pub(super) fn post_send(
        &self,
        work: &[SendWr<'_>],
        limits: &Limits<'_>,
    ) -> Result<(), (usize, VerbsError)> {
        let mut queue = lock(&self.send);
        let raw = queue.raw.clone().ok_or((0, VerbsError::NotFound))?;
        if !queue.connected {
            return Err((0, VerbsError::InvalidState));
        }
        let mut chain = SendChain::new();
        let mut entries = [SendRecord::default(); BATCH];
        let mut done = 0;
        for part in work.chunks(BATCH) {
            chain.clear();
            let mut refused = None;
            for (wr, entry) in part.iter().zip(&mut entries) {
                let index = queue.ring.next_index(chain.len());
                let added =
                    reserve(&self.send_cq, queue.ring.room(), chain.len(), || chain.add(wr, index, limits));
                match added {
                    Ok(sent) => *entry = sent,
                    Err(e) => {
                        refused = Some(e);
                        break;
                    }
                }
            }
            // SAFETY: inline payloads are in `work`, which is borrowed here.
            let posted = unsafe { chain.post(&raw) };
            done += queue.posted(chain.len(), posted, &entries, &self.send_cq, &mut refused);
            if let Some(error) = refused {
                return Err((done, error));
            }
        }
        self.flush_if_failed(&raw);
        Ok(())
    }

    /// Posts receive work, with the results of `Rnic::post_recv`.
    pub(super) fn post_recv(
        &self,
        work: &[RecvWr<'_>],
        limits: &Limits<'_>,
    ) -> Result<(), (usize, VerbsError)> {
        let mut queue = lock(&self.recv);
        let raw = queue.raw.clone().ok_or((0, VerbsError::NotFound))?;
        let mut chain = RecvChain::new();
        let mut entries = [WrId::default(); BATCH];
        let mut done = 0;
        for part in work.chunks(BATCH) {
            chain.clear();
            let mut refused = None;
            for (wr, entry) in part.iter().zip(&mut entries) {
                let index = queue.ring.next_index(chain.len());
                let added =
                    reserve(&self.recv_cq, queue.ring.room(), chain.len(), || chain.add(wr, index, limits));
                match added {
                    Ok(id) => *entry = id,
                    Err(e) => {
                        refused = Some(e);
                        break;
                    }
                }
            }
            let posted = chain.post(&raw);
            done += queue.posted(chain.len(), posted, &entries, &self.recv_cq, &mut refused);
            if let Some(error) = refused {
                return Err((done, error));
            }
        }
        self.flush_if_failed(&raw);
        Ok(())
    }

    /// Interprets a completion of the device. Returns `None` if its work is not outstanding.
    pub(super) fn translate(&self, wc: &ibv::ibv_wc) -> Option<Completion> {
        let status = status_of(wc.status);
        let (is_recv, index) = index_of(wc.wr_id);
        // SAFETY: both fields of the union are the same four bytes.
        let (imm, key) = unsafe {
            let word = &wc.imm_data_invalidated_rkey_union;
            (u32::from_be(word.imm_data), RemoteKey(word.invalidated_rkey))
        };
        let has = |flag: ibv::ibv_wc_flags| wc.wc_flags & flag.0 != 0;
        let imm = has(ibv::ibv_wc_flags::IBV_WC_WITH_IMM).then_some(imm);
        let invalidated = has(ibv::ibv_wc_flags::IBV_WC_WITH_INV).then_some(key).filter(|_| is_recv);
        let (id, kind, byte_len, imm) = if is_recv {
            let mut queue = lock(&self.recv);
            let (id, count) = queue.ring.complete(index)?;
            self.recv_cq.release(count);
            let by_write = wc.opcode == ibv::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
            // A failed completion has no valid opcode.
            let kind =
                if status == Status::Success && by_write { WorkKind::RecvWriteImm } else { WorkKind::Recv };
            self.note(status, &queue);
            (id, kind, wc.byte_len, imm)
        } else {
            let mut queue = lock(&self.send);
            let (sent, count) = queue.ring.complete(index)?;
            self.send_cq.release(count);
            self.note(status, &queue);
            (sent.id, sent.kind, sent.len, None)
        };
        Some(Completion { byte_len, imm, invalidated, ..Completion::new(id, self.number, status, kind) })
    }

    /// Takes the device's queue pair from both queues, after which nothing can be posted. Returns `None` if
    /// another thread has taken it.
    pub(super) fn take(&self) -> Option<Arc<QueuePair>> {
        // The locks are held one after the other, so no lock order is needed.
        let raw = lock(&self.send).raw.take();
        lock(&self.recv).raw.take();
        raw
    }

    /// Keeps a queue pair whose destruction has failed, for another attempt.
    pub(super) fn keep(&self, raw: QueuePair) {
        *lock(&self.undestroyed) = Some(raw);
    }

    /// Takes the queue pair whose destruction has failed.
    pub(super) fn take_undestroyed(&self) -> Option<QueuePair> {
        lock(&self.undestroyed).take()
    }

    /// Completes the outstanding work as flushed, after the device has stopped completing work.
    pub(super) fn flush_all(&self) {
        let flushed = |id, kind| Completion::new(id, self.number, Status::WorkRequestFlushed, kind);
        let mut cq = self.send_cq.lock();
        let mut queue = lock(&self.send);
        while let Some(sent) = queue.ring.pop() {
            self.send_cq.release(1);
            cq.push(flushed(sent.id, sent.kind));
        }
        drop((cq, queue));
        let mut cq = self.recv_cq.lock();
        let mut queue = lock(&self.recv);
        while let Some(id) = queue.ring.pop() {
            self.recv_cq.release(1);
            cq.push(flushed(id, WorkKind::Recv));
        }
    }

    /// Reacts to the first failure. The queue's lock is held, so that the queue pair is not kept beyond its
    /// destruction.
    fn note<T>(&self, status: Status, queue: &Queue<T>) {
        if status != Status::Success
            && !self.failed.swap(true, Ordering::AcqRel)
            && let Some(raw) = &queue.raw
        {
            flush(raw);
        }
    }

    /// Flushes again after posting, because `rdma_rxe` looks at receives that are posted in the error state
    /// only on request.
    fn flush_if_failed(&self, raw: &QueuePair) {
        if self.failed.load(Ordering::Acquire) {
            flush(raw);
        }
    }
}

impl<T: Copy + Default> Queue<T> {
    /// Records the posted part of `len` work requests, and releases the room of the rest. Returns the number
    /// posted.
    fn posted(
        &mut self,
        len: usize,
        outcome: Result<(), (usize, io::Error)>,
        entries: &[T],
        cq: &Cq,
        refused: &mut Option<VerbsError>,
    ) -> usize {
        let count = match outcome {
            Ok(()) => len,
            Err((count, error)) => {
                *refused = Some(verbs_error(&error));
                count.min(len)
            }
        };
        cq.release((len - count) as u32);
        for entry in entries.iter().take(count) {
            self.ring.push(*entry);
        }
        count
    }
}

/// Calls `add` if there is room in the queue beyond `waiting` requests, and in its completion queue, where it
/// reserves room.
fn reserve<T>(
    cq: &Cq,
    room: usize,
    waiting: usize,
    add: impl FnOnce() -> Result<T, VerbsError>,
) -> Result<T, VerbsError> {
    if room <= waiting || !cq.reserve() {
        return Err(VerbsError::NoResources);
    }
    let added = add();
    if added.is_err() {
        cq.release(1);
    }
    added
}

/// Takes a queue pair to the error state, where all outstanding work completes as flushed.
pub(super) fn flush(raw: &QueuePair) {
    let mut attributes = no_attributes();
    attributes.qp_state = ibv::ibv_qp_state::IBV_QPS_ERR;
    // The only call that is allowed in any state. A device that refuses it has gone, and completes nothing.
    let _ = raw.modify(&mut attributes, ibv::ibv_qp_attr_mask::IBV_QP_STATE);
}
