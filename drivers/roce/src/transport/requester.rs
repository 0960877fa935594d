//! The requester: turns send work into request packets, and responses into completions (specification 9.7.3, 9.7.5).
//!
//! ```text
//!      head of queue          cursor
//!        |                      |
//!   ----[una .............. next) ........ sent) ---->  PSN
//!        oldest not            next to     highest sent
//!        acknowledged          send        before, plus 1
//! ```
//! `next` falls behind `sent` when the requester goes back. `next - una` is bounded by an adaptive window.

use super::qp::{Source, Tx};
use super::send_queue::{Op, SendQueue, Wqe};
use super::{Env, READ_CHUNK};
use crate::wire::{AtomicEth, Bth, Ext, NakCode, Opcode, Operation, Packet, Reth, RnrTimer, Syndrome};
use alloc::collections::VecDeque;
use core::time::Duration;
use platform::Instant;
use verbs::{Completion, Psn, QpConnect, QpNum, RemoteAddr, SendWr, Status, VerbsError};

/// The window never shrinks below this many packets.
const MIN_WINDOW: u32 = 4;
/// The window of a new connection in packets.
const FIRST_WINDOW: u32 = 32;
/// How often the acknowledgement timeout doubles at most: enough for the most retries that verbs know.
const MAX_DOUBLINGS: u32 = 7;
/// An RNR retry count that means for ever (specification 9.7.5.2.8).
const RNR_FOR_EVER: u8 = 7;

/// Distance from `b` up to `a`, modulo 2^24.
const fn ahead(a: Psn, b: Psn) -> u32 {
    a.get().wrapping_sub(b.get()) & 0xff_ffff
}

pub(super) struct Requester {
    qp: QpNum,
    queue: SendQueue,
    remote_qp: QpNum,
    mtu: usize,
    max_rd_atomic: usize,
    ack_timeout: Duration,
    retries: u8,
    rnr_retries: u8,
    max_window: u32,

    /// Oldest PSN not acknowledged.
    una: Psn,
    /// Next PSN to send.
    next: Psn,
    /// One past the highest PSN ever sent.
    sent: Psn,
    /// First PSN of the next work request posted.
    post: Psn,
    /// The work request that `next` belongs to.
    cursor: u64,
    /// Ends (one past) of the READ requests and atomics between `una` and `next`.
    rd_atomic: VecDeque<Psn>,
    /// Where the requester last went back to because of a gap: it does so once per gap.
    gap_at: Option<Psn>,
    window: u32,
    /// Packets acknowledged since the window last grew.
    acknowledged: u32,
    /// Packets sent since the last one that asked for an acknowledgement.
    unasked: u32,
    retries_left: u8,
    rnr_left: u8,
    ack_deadline: Option<Instant>,
    /// Nothing is sent before: the responder was not ready.
    wait_until: Option<Instant>,
}

/// Whether all up to a PSN could be taken as done, or data of a READ or atomic before it is missing.
#[derive(PartialEq, Eq)]
enum Reached {
    Yes,
    DataMissing,
}

impl Requester {
    pub(super) fn new(qp: QpNum, queue: SendQueue, max_rd_atomic: u8, max_window: u32) -> Self {
        Self {
            qp,
            queue,
            remote_qp: QpNum::new(0),
            mtu: 256,
            max_rd_atomic: 0,
            ack_timeout: Duration::ZERO,
            retries: 0,
            rnr_retries: 0,
            max_window: max_window.max(MIN_WINDOW),
            una: Psn::new(0),
            next: Psn::new(0),
            sent: Psn::new(0),
            post: Psn::new(0),
            cursor: 0,
            rd_atomic: VecDeque::with_capacity(usize::from(max_rd_atomic)),
            gap_at: None,
            window: FIRST_WINDOW.min(max_window).max(MIN_WINDOW),
            acknowledged: 0,
            unasked: 0,
            retries_left: 0,
            rnr_left: 0,
            ack_deadline: None,
            wait_until: None,
        }
    }

    pub(super) fn connect(&mut self, connect: &QpConnect) {
        self.remote_qp = connect.remote_qp;
        self.mtu = connect.mtu.bytes();
        self.max_rd_atomic = usize::from(connect.max_rd_atomic);
        self.ack_timeout = connect.ack_timeout;
        self.retries = connect.retries;
        self.rnr_retries = connect.rnr_retries;
        self.retries_left = connect.retries;
        self.rnr_left = connect.rnr_retries;
        self.una = connect.send_psn;
        self.next = connect.send_psn;
        self.sent = connect.send_psn;
        self.post = connect.send_psn;
    }

    pub(super) fn post(
        &mut self,
        work: &SendWr<'_>,
        memory: &dyn platform::Memory,
    ) -> Result<(), VerbsError> {
        let packets = self.queue.push(work, self.post, self.mtu, memory)?;
        self.post = self.post.add(packets);
        Ok(())
    }

    pub(super) const fn queue(&self) -> &SendQueue {
        &self.queue
    }

    /// When [`on_timer`](Self::on_timer) is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.wait_until.or(self.ack_deadline)
    }

    /// The next request packet, if one may be sent now.
    pub(super) fn next_tx(&self) -> Option<Tx> {
        if self.wait_until.is_some() {
            return None;
        }
        let wqe = self.queue.get(self.cursor)?;
        let done = ahead(self.next, wqe.first);
        let in_flight = ahead(self.next, self.una);
        if wqe.fence && done == 0 && !self.rd_atomic.is_empty() {
            return None;
        }
        let packets = if let Op::Read(_) = wqe.op {
            READ_CHUNK.min(wqe.packets - done / READ_CHUNK * READ_CHUNK) - done % READ_CHUNK
        } else {
            1
        };
        if in_flight > 0 && in_flight + packets > self.window {
            return None;
        }
        if wqe.op.is_rd_atomic() && self.rd_atomic.len() >= self.max_rd_atomic {
            return None;
        }
        Some(match wqe.op {
            Op::Send | Op::Write(_) => self.data_packet(wqe, done, in_flight),
            Op::Read(remote) => {
                let offset = done * self.mtu as u32;
                let len = (packets * self.mtu as u32).min(wqe.len - offset);
                let ext = Ext::Reth(Reth { addr: offset_addr(remote, offset), key: remote.key, len });
                self.asking(Operation::ReadRequest, ext, packets)
            }
            Op::FetchAdd { remote, add, .. } => {
                let ext = AtomicEth { addr: remote.addr, key: remote.key, swap_add: add, compare: 0 };
                self.asking(Operation::FetchAdd, Ext::Atomic(ext), 1)
            }
            Op::CompareSwap { remote, compare, swap, .. } => {
                let ext = AtomicEth { addr: remote.addr, key: remote.key, swap_add: swap, compare };
                self.asking(Operation::CompareSwap, Ext::Atomic(ext), 1)
            }
        })
    }

    /// A READ or atomic request.
    fn asking(&self, operation: Operation, ext: Ext, packets: u32) -> Tx {
        let mut bth = Bth::new(Opcode::rc(operation), self.remote_qp, self.next);
        bth.ack_request = true;
        Tx { bth, ext, len: 0, source: Source::Request { position: self.cursor, offset: 0, packets } }
    }

    /// Packet number `done` of a SEND or WRITE.
    fn data_packet(&self, wqe: &Wqe, done: u32, in_flight: u32) -> Tx {
        use Operation as O;
        let offset = done * self.mtu as u32;
        let len = (self.mtu as u32).min(wqe.len - offset);
        let (first, last) = (done == 0, done + 1 == wqe.packets);
        let mut ext = match (last, wqe.imm) {
            (true, Some(imm)) => Ext::Imm(imm),
            _ => Ext::None,
        };
        let imm = ext != Ext::None;
        let operation = if let Op::Write(remote) = wqe.op {
            if first {
                let reth = Reth { addr: remote.addr, key: remote.key, len: wqe.len };
                ext = if let Ext::Imm(imm) = ext { Ext::RethImm(reth, imm) } else { Ext::Reth(reth) };
            }
            match (first, last, imm) {
                (true, false, _) => O::WriteFirst,
                (false, false, _) => O::WriteMiddle,
                (false, true, false) => O::WriteLast,
                (false, true, true) => O::WriteLastImm,
                (true, true, false) => O::WriteOnly,
                (true, true, true) => O::WriteOnlyImm,
            }
        } else {
            match (first, last, imm) {
                (true, false, _) => O::SendFirst,
                (false, false, _) => O::SendMiddle,
                (false, true, false) => O::SendLast,
                (false, true, true) => O::SendLastImm,
                (true, true, false) => O::SendOnly,
                (true, true, true) => O::SendOnlyImm,
            }
        };
        let mut bth = Bth::new(Opcode::rc(operation), self.remote_qp, self.next);
        bth.solicited = wqe.solicited && last;
        // Ask when somebody waits for it, when nothing follows, and often enough to keep the window moving.
        let nothing_follows = self.cursor + 1 == self.queue.tail();
        bth.ack_request = last && (wqe.signaled || nothing_follows)
            || (self.unasked + 1) * 4 >= self.window
            || in_flight + 1 >= self.window;
        Tx {
            bth,
            ext,
            len: len as usize,
            source: Source::Request { position: self.cursor, offset, packets: 1 },
        }
    }

    /// `tx`, which [`next_tx`](Self::next_tx) gave, was sent.
    pub(super) fn on_sent(&mut self, tx: &Tx, packets: u32, env: &mut Env<'_>) {
        let Some(wqe) = self.queue.get(self.cursor) else { return };
        let wqe_end = wqe.first.add(wqe.packets);
        if wqe.op.is_rd_atomic() {
            self.rd_atomic.push_back(self.next.add(packets));
        }
        if self.next != self.sent {
            env.counters.retransmits += 1;
        }
        self.next = self.next.add(packets);
        if ahead(self.next, self.una) > ahead(self.sent, self.una) {
            self.sent = self.next;
        }
        if self.next == wqe_end {
            self.cursor += 1;
        }
        self.unasked = if tx.bth.ack_request { 0 } else { self.unasked + 1 };
        if self.ack_deadline.is_none() {
            self.ack_deadline = Some(env.now + self.patience());
        }
    }

    /// How long to wait for an acknowledgement: twice as long after each timeout since the last progress, so that what
    /// was lost is sent again soon, but a peer whose processor is away for a while is not given up.
    fn patience(&self) -> Duration {
        let timeouts = u32::from(self.retries - self.retries_left);
        self.ack_timeout.saturating_mul(1 << timeouts.min(MAX_DOUBLINGS))
    }

    /// Handles a response. An error is fatal to the queue pair and belongs to the oldest work request.
    pub(super) fn on_response(&mut self, packet: &Packet<'_>, env: &mut Env<'_>) -> Result<(), Status> {
        let psn = packet.bth.psn;
        let outstanding = ahead(self.sent, self.una);
        // A NAK for a missing packet may name the PSN that was never sent yet; nothing else may.
        let is_sequence_nak =
            matches!(packet.ext, Ext::Aeth(a) if a.syndrome == Syndrome::Nak(NakCode::PsnSequenceError));
        if ahead(psn, self.una) >= outstanding + u32::from(is_sequence_nak) {
            env.counters.rx_stale_responses += 1;
            return Ok(());
        }
        match (packet.bth.opcode.operation, &packet.ext) {
            (Operation::Acknowledge, Ext::Aeth(aeth)) => self.on_acknowledge(psn, aeth.syndrome, env),
            (Operation::AtomicAcknowledge, &Ext::AtomicAck(_, before)) => self.on_atomic(psn, before, env),
            (Operation::Acknowledge | Operation::AtomicAcknowledge, _) => Ok(()),
            _ => self.on_read_data(psn, packet.payload, env),
        }
    }

    fn on_acknowledge(&mut self, psn: Psn, syndrome: Syndrome, env: &mut Env<'_>) -> Result<(), Status> {
        match syndrome {
            Syndrome::Ack { .. } => {
                if self.acknowledge_before(psn.add(1), env) == Reached::DataMissing {
                    self.gap(env);
                }
                Ok(())
            }
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                self.acknowledge_before(psn, env);
                self.gap(env);
                Ok(())
            }
            Syndrome::RnrNak(timer) => {
                if self.acknowledge_before(psn, env) == Reached::DataMissing {
                    self.gap(env);
                    return Ok(());
                }
                self.on_rnr(timer, env)
            }
            Syndrome::Nak(code) => {
                self.acknowledge_before(psn, env);
                Err(match code {
                    NakCode::RemoteAccessError => Status::RemoteAccessError,
                    NakCode::RemoteOperationalError => Status::RemoteOperationError,
                    NakCode::InvalidRequest | NakCode::PsnSequenceError => Status::RemoteInvalidRequest,
                })
            }
            Syndrome::Reserved(_) => {
                env.counters.rx_malformed += 1;
                Ok(())
            }
        }
    }

    fn on_rnr(&mut self, timer: RnrTimer, env: &mut Env<'_>) -> Result<(), Status> {
        if self.wait_until.is_some() {
            return Ok(());
        }
        env.counters.rx_rnr_naks += 1;
        if self.rnr_retries < RNR_FOR_EVER {
            self.rnr_left = self.rnr_left.checked_sub(1).ok_or(Status::RnrRetryExceeded)?;
        }
        self.go_back();
        self.wait_until = Some(env.now + timer.delay());
        self.ack_deadline = None;
        Ok(())
    }

    fn on_atomic(&mut self, psn: Psn, before: u64, env: &mut Env<'_>) -> Result<(), Status> {
        if self.acknowledge_before(psn, env) == Reached::DataMissing {
            self.gap(env);
            return Ok(());
        }
        let Some(wqe) = self.queue.front() else { return Ok(()) };
        let (Op::FetchAdd { result, .. } | Op::CompareSwap { result, .. }) = wqe.op else {
            return Err(Status::BadResponse);
        };
        env.memory.write(result, &before.to_ne_bytes()).map_err(|_| Status::LocalProtectionError)?;
        self.advance(1, env);
        Ok(())
    }

    fn on_read_data(&mut self, psn: Psn, data: &[u8], env: &mut Env<'_>) -> Result<(), Status> {
        if self.acknowledge_before(psn, env) == Reached::DataMissing {
            self.gap(env);
            return Ok(());
        }
        let Some(wqe) = self.queue.front() else { return Ok(()) };
        let Op::Read(_) = wqe.op else { return Err(Status::BadResponse) };
        let offset = ahead(psn, wqe.first) * self.mtu as u32;
        if data.len() != self.mtu.min((wqe.len - offset) as usize) {
            return Err(Status::BadResponse);
        }
        let position = self.queue.head();
        let written = self.queue.scatter(position, offset, data, env.memory);
        written.map_err(|_| Status::LocalProtectionError)?;
        self.advance(1, env);
        Ok(())
    }

    /// The responder has executed all before `limit`: completes what needs no data for that.
    fn acknowledge_before(&mut self, limit: Psn, env: &mut Env<'_>) -> Reached {
        while self.una != limit {
            let Some(wqe) = self.queue.front() else { return Reached::Yes };
            if wqe.op.is_rd_atomic() {
                return Reached::DataMissing;
            }
            let to_end = ahead(wqe.first.add(wqe.packets), self.una);
            self.advance(to_end.min(ahead(limit, self.una)), env);
        }
        Reached::Yes
    }

    /// Moves `una` by `packets` of the oldest work request.
    fn advance(&mut self, packets: u32, env: &mut Env<'_>) {
        let behind = ahead(self.next, self.una) < packets;
        self.una = self.una.add(packets);
        if let Some(wqe) = self.queue.front()
            && self.una == wqe.first.add(wqe.packets)
        {
            self.complete_front(Status::Success, env);
        }
        if behind {
            // What was about to be sent again has been acknowledged after all.
            self.next = self.una;
            self.cursor = self.queue.head();
        }
        let una = self.una;
        while self.rd_atomic.front().is_some_and(|&end| una.distance_from(end) >= 0) {
            self.rd_atomic.pop_front();
        }
        self.gap_at = None;
        self.retries_left = self.retries;
        self.rnr_left = self.rnr_retries;
        self.wait_until = None;
        self.ack_deadline = (self.una != self.sent).then(|| env.now + self.patience());
        self.acknowledged += packets;
        if self.acknowledged >= self.window {
            self.acknowledged = 0;
            self.window = (self.window + self.window.div_ceil(8)).min(self.max_window);
        }
    }

    /// Something got lost: goes back to `una`, once per gap.
    fn gap(&mut self, env: &mut Env<'_>) {
        if self.gap_at == Some(self.una) || self.una == self.sent {
            return;
        }
        env.counters.rx_naks += 1;
        self.gap_at = Some(self.una);
        self.go_back();
        self.shrink();
    }

    fn go_back(&mut self) {
        self.next = self.una;
        self.cursor = self.queue.head();
        self.rd_atomic.clear();
        self.unasked = 0;
    }

    fn shrink(&mut self) {
        self.window = (self.window / 2).max(MIN_WINDOW);
        self.acknowledged = 0;
    }

    /// The time is `env.now`: ends a wait, or goes back if no acknowledgement came in time.
    pub(super) fn on_timer(&mut self, env: &mut Env<'_>) -> Result<(), Status> {
        if let Some(until) = self.wait_until {
            if env.now >= until {
                self.wait_until = None;
            }
            return Ok(());
        }
        if self.ack_deadline.is_none_or(|deadline| env.now < deadline) {
            return Ok(());
        }
        env.counters.timeouts += 1;
        self.retries_left = self.retries_left.checked_sub(1).ok_or(Status::RetryExceeded)?;
        self.go_back();
        self.shrink();
        self.gap_at = None;
        self.ack_deadline = Some(env.now + self.patience());
        Ok(())
    }

    /// Ends all work: the oldest with `status` if there is one, the rest as flushed.
    pub(super) fn flush(&mut self, status: Option<Status>, env: &mut Env<'_>) {
        if let Some(status) = status {
            self.complete_front(status, env);
        }
        while self.complete_front(Status::WorkRequestFlushed, env) {}
        self.cursor = self.queue.head();
        self.rd_atomic.clear();
        self.una = self.post;
        self.next = self.post;
        self.sent = self.post;
        self.ack_deadline = None;
        self.wait_until = None;
    }

    /// Takes the oldest work request out and completes it; `false` if there was none.
    fn complete_front(&mut self, status: Status, env: &mut Env<'_>) -> bool {
        let Some(wqe) = self.queue.pop() else { return false };
        let (byte_len, kind) = (wqe.len, wqe.op.kind());
        let completion = Completion { id: wqe.id, qp: self.qp, status, kind, byte_len, imm: None };
        env.completions.send_ended(&completion, wqe.signaled || status != Status::Success);
        true
    }
}

/// The address `offset` bytes into a remote range. Wraps where the peer will refuse it.
const fn offset_addr(remote: RemoteAddr, offset: u32) -> platform::IoAddr {
    platform::IoAddr(remote.addr.0.wrapping_add(offset as u64))
}
