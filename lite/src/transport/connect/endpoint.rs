//! The queue pair for datagrams of set-ups, and its buffers.
//!
//! The poller only notes the datagrams that have arrived. A task takes them, and posts their receives again.
//! So a flood of datagrams fills the receives, and the RNIC drops the rest. Neither the poller nor the
//! task allocates memory for a datagram that is not proven to be a member's.

use super::datagram::MAX_DATAGRAM;
use crate::base::bounce::Run;
use crate::base::lock::Mutex;
use crate::base::wait::Waiters;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use platform::{IoAddr, Platform};
use verbs::{
    AddressVector, Completion, CqId, GRH_LEN, Payload, QKey, QpNum, RecvWr, Rnic, Sge, Status, UdOptions,
    UdQp, UdSendWr, VerbsError, WrId,
};

/// The number of receives.
const RECEIVES: u32 = 64;
/// The number of datagrams that may wait to be sent.
const SENDS: u32 = 32;
/// The number of completions that the queue pair may have.
pub(crate) const DEPTH: u32 = RECEIVES + SENDS;
/// The length of the buffer of a receive: the bytes about the source, and the datagram.
const RECEIVE: u32 = GRH_LEN + MAX_DATAGRAM as u32;
/// The distance of two buffers of receives.
const STRIDE: u64 = 1088;
/// The offset of the buffers of datagrams to be sent.
const SEND_BUFFERS: u64 = RECEIVES as u64 * STRIDE;
/// The Q_Key of all nodes. It keeps datagrams of other programs away, and proves nothing.
const Q_KEY: QKey = QKey(0x4c49_5445);
/// The bit of the identifiers of these receives. The number of the queue pair's life is above the index.
const MARK: u64 = 1 << 63;
const LIFE_SHIFT: u32 = 16;
/// The identifier of every send; no operation has it.
const SEND: WrId = WrId(0);

/// The endpoint for datagrams.
pub(crate) struct Endpoint {
    rnic: Arc<dyn Rnic>,
    cq: CqId,
    /// The length of the longest datagram that the port sends, in bytes.
    max_len: usize,
    state: Mutex<State>,
    /// The task that takes datagrams.
    pub(super) arrival: Waiters,
}

#[derive(Default)]
struct State {
    /// The memory of the buffers; `None` if the RNIC has no datagrams, or no memory was free.
    memory: Option<Run>,
    queue_pair: Option<UdQp>,
    /// The number of queue pairs made so far.
    life: u64,
    /// The indices of the receives that have completed, and the lengths of their datagrams.
    arrived: VecDeque<(u64, usize)>,
    /// The numbers of datagrams that were posted, and of those that have completed, modulo 2^32.
    posted: u32,
    sent: u32,
    /// The number of completions that are still due for former queue pairs.
    stale: u32,
    /// True if the queue pair has failed.
    has_failed: bool,
    /// True once no datagram is sent or taken any more.
    is_closed: bool,
}

/// The next task of the one that takes datagrams.
pub(super) enum Next {
    /// The first bytes of the buffer are a datagram of this length.
    Datagram(usize),
    /// The queue pair has failed.
    Failed,
    Closed,
}

impl Endpoint {
    pub(super) fn new(rnic: Arc<dyn Rnic>, cq: CqId) -> Self {
        let max_len = rnic.attributes().max_mtu.bytes().min(MAX_DATAGRAM);
        Self { rnic, cq, max_len, state: Mutex::default(), arrival: Waiters::default() }
    }

    /// Takes memory, and makes the queue pair. Without either, set-ups go through the manager.
    pub(super) fn open(&self, platform: &dyn Platform) {
        let len = SEND_BUFFERS + u64::from(SENDS) * MAX_DATAGRAM as u64;
        if let Some(memory) = platform.memory().lend(len) {
            self.state.lock().memory = Some(memory);
            if self.make().is_err() {
                self.state.lock().memory = None;
            }
        }
    }

    /// Makes a queue pair, and posts its receives.
    fn make(&self) -> Result<(), VerbsError> {
        let (life, addr) = {
            let mut state = self.state.lock();
            let Some(addr) = state.memory.as_ref().map(|memory| memory.addr()) else {
                return Err(VerbsError::Unsupported);
            };
            state.life += 1;
            state.stale = state.stale.wrapping_add(state.posted.wrapping_sub(state.sent));
            state.sent = state.posted;
            state.has_failed = false;
            state.arrived.clear();
            state.arrived.reserve(RECEIVES as usize);
            (state.life, addr)
        };
        let (send_cq, recv_cq) = (self.cq, self.cq);
        let options = UdOptions { send_cq, recv_cq, send_depth: SENDS, recv_depth: RECEIVES, qkey: Q_KEY };
        let queue_pair = self.rnic.create_ud_qp(options)?;
        let is_closed = {
            let mut state = self.state.lock();
            state.queue_pair = Some(queue_pair);
            state.is_closed
        };
        if is_closed {
            return self.destroy();
        }
        (0..u64::from(RECEIVES)).try_for_each(|index| self.receive(queue_pair, life, addr, index))
    }

    /// Replaces a queue pair that has failed. Fails while the RNIC cannot.
    pub(super) fn replace(&self) -> Result<(), VerbsError> {
        self.destroy()?;
        self.make()
    }

    /// Posts one receive.
    fn receive(&self, queue_pair: UdQp, life: u64, addr: IoAddr, index: u64) -> Result<(), VerbsError> {
        let addr = IoAddr(addr.0 + index * STRIDE);
        let scatter = [Sge { addr, len: RECEIVE }];
        let id = WrId(MARK | life << LIFE_SHIFT | index);
        self.rnic.post_recv(queue_pair.number(), &[RecvWr { id, scatter: &scatter }]).map_err(|(_, e)| e)
    }

    /// Returns the number of the queue pair, if there is one that works.
    pub(crate) fn queue_pair(&self) -> Option<QpNum> {
        let state = self.state.lock();
        state.queue_pair.filter(|_| !state.has_failed).map(UdQp::number)
    }

    /// Returns the number of queue pairs.
    #[cfg(feature = "testing")]
    pub(crate) fn queue_pairs(&self) -> usize {
        usize::from(self.state.lock().queue_pair.is_some())
    }

    /// Sends a datagram. Returns false if none can be sent now.
    pub(super) fn send(&self, to: AddressVector, remote_qp: QpNum, bytes: &[u8]) -> bool {
        let mut state = self.state.lock();
        let State { memory: Some(memory), queue_pair: Some(queue_pair), .. } = &*state else { return false };
        let waiting = state.posted.wrapping_sub(state.sent);
        if waiting >= SENDS || state.has_failed || state.is_closed {
            return false;
        }
        let offset = SEND_BUFFERS + u64::from(state.posted % SENDS) * MAX_DATAGRAM as u64;
        if bytes.len() > self.max_len || memory.write(offset, bytes).is_err() {
            return false;
        }
        let data = [Sge { addr: IoAddr(memory.addr().0 + offset), len: bytes.len() as u32 }];
        let data = Payload::Gather(&data);
        let work = UdSendWr {
            id: SEND,
            to,
            remote_qp,
            qkey: Q_KEY,
            data,
            imm: None,
            signaled: true,
            solicited: true,
        };
        let posted = self.rnic.post_send_ud(*queue_pair, &[work]).is_ok();
        state.posted = state.posted.wrapping_add(u32::from(posted));
        posted
    }

    /// Notes a completion that is neither an operation's nor that of a connection's receive; called by the
    /// poller.
    pub(crate) fn completed(&self, completion: &Completion) {
        let Completion { id, status, byte_len, .. } = *completion;
        let mut state = self.state.lock();
        let has_failed = status != Status::Success;
        if id == SEND {
            if state.stale > 0 {
                state.stale -= 1;
                return;
            }
            state.sent = state.sent.wrapping_add(1);
        } else {
            if id.0 & MARK == 0 || (id.0 & !MARK) >> LIFE_SHIFT != state.life {
                return;
            }
            if !has_failed {
                let len = (byte_len as usize).saturating_sub(GRH_LEN as usize).min(MAX_DATAGRAM);
                state.arrived.push_back((id.0 & ((1 << LIFE_SHIFT) - 1), len));
            }
        }
        state.has_failed |= has_failed;
        drop(state);
        self.arrival.wake_all();
    }

    /// Copies the next datagram into `into`, and posts its receive again. Returns `None` if there is nothing
    /// to do.
    pub(super) fn next(&self, into: &mut [u8; MAX_DATAGRAM]) -> Option<Next> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Some(Next::Closed);
        }
        if state.has_failed {
            return Some(Next::Failed);
        }
        let (index, len) = state.arrived.pop_front()?;
        let (memory, queue_pair) = (state.memory.as_ref()?, state.queue_pair?);
        let offset = index * STRIDE + u64::from(GRH_LEN);
        let (is_read, addr) = (memory.read(offset, into.get_mut(..len)?).is_ok(), memory.addr());
        if self.receive(queue_pair, state.life, addr, index).is_err() {
            state.has_failed = true;
        }
        Some(Next::Datagram(if is_read { len } else { 0 }))
    }

    /// Destroys the queue pair.
    fn destroy(&self) -> Result<(), VerbsError> {
        let Some(queue_pair) = self.state.lock().queue_pair else { return Ok(()) };
        match self.rnic.destroy_qp(queue_pair.number()) {
            Err(VerbsError::StillServed) => return Err(VerbsError::StillServed),
            Err(error) => log::warn!("lite: cannot destroy {:?}: {error}", queue_pair.number()),
            Ok(()) => {}
        }
        self.state.lock().queue_pair = None;
        Ok(())
    }

    /// Ends all sending and receiving, because the membership is over.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        if let Err(error) = self.destroy() {
            log::error!("lite: the queue pair for datagrams stays: {error}");
        }
        self.arrival.wake_all();
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.destroy().is_err() {
            log::error!("lite: the RNIC cannot destroy a queue pair: its memory is lost");
            core::mem::forget(self.state.get_mut().memory.take());
        }
    }
}
