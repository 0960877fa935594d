//! The responder executes request packets in order and responds to them (specification 9.7.4, 9.7.5).
//!
//! Responses leave in PSN order: READ data and atomic results, then one acknowledgement for everything
//! executed since the last one. A positive acknowledgement waits for the next call of `progress`, so that the
//! application's reply is sent first and several requests share one acknowledgement.
//!
//! # Refusals
//!
//! Tests are in `tests/it/responder_errors.rs` and `tests/it/responder_duplicates.rs`. Classes are those of
//! the specification, 9.9.3: B leaves the queue pair as it is; A, C and J end it, and the receive in use
//! completes with the given status, or as flushed if the request used none. A refusal is repeated when the
//! peer, which did not receive it, repeats its request.
//!
//! | request | class | syndrome | receive | test |
//! |---|---|---|---|---|
//! | PSN too high: once per gap, again when the peer went back | B | SEQ | | `a_gap_is_reported_once` |
//! | SEND or WRITE with immediate without a receive | B | RNR | | `no_receive` |
//! | middle or last without first, or first within a message | C | INV | RIR | `operations_out_of_sequence` |
//! | response or reserved operation (dropped) | | | | `operations_that_are_no_requests` |
//! | first or middle not full, last empty, any above the MTU | C | INV | RIR | `lengths_of_packets` |
//! | WRITE with more or fewer bytes than its RETH says | C | INV | | `a_write_keeps_to_its_length` |
//! | READ or WRITE of more than 2^31 bytes | C | INV | | `lengths_of_messages` |
//! | SEND longer than its receive [^1] | C | INV | LLE | `a_send_too_long` |
//! | atomic on an address that is not a multiple of 8 | C | INV | | `a_misaligned_atomic` |
//! | more READs and atomics than `max_rd_atomic` unanswered | C | INV | | `too_many_reads` |
//! | key, range or right that does not allow the access | C | ACC | | `access` |
//! | XRC request for a queue that its peer may not name | C | ACC | | `xrc.rs` |
//! | XRC message whose packets name two queues | C | INV | RIR | `xrc.rs` |
//! | key invalidated during the response to a READ [^2] | C | ACC | | `a_key_lost_in_mid_read` |
//! | SEND that invalidates a key that it may not [^3] | J | ACC | RIR | `invalidate_refused` |
//! | receive whose own memory is no longer valid | A | OPS | LPE | `a_receive_without_memory` |
//!
//! Syndromes: SEQ is NAK PSN sequence error, RNR is RNR NAK with the queue pair's timer code, INV is NAK
//! invalid request, ACC is NAK remote access error, OPS is NAK remote operational error. Statuses of the
//! receive: RIR is remote invalid request, LLE is local length error, LPE is local protection error.
//!
//! [^1]: Linux up to 6.1 answers with OPS.
//!
//! [^2]: The refusal takes the place of the response.
//!
//! [^3]: Linux answers with an acknowledgement.
//!
//! A repeated request (specification 9.7.5.1.5) is never executed again. A SEND or WRITE is acknowledged; a
//! READ or a part of one is answered from the present memory; an atomic is answered with its first result.
//! The last `max_rd_atomic` READs and atomics are remembered for that, which is as many as a peer may have
//! outstanding. A repeated request that is older, or names another range than the first time, is dropped and
//! counted: the peer has received its response.

use super::access::{Denied, Right};
use super::qp::{Source, Tx};
use super::recv_queue::RecvQueue;
use super::resources::{Answer, Data, Range, Resources};
use super::segment::{Refusal, Segment};
use super::send_queue::packets;
use super::{Env, MAX_MESSAGE};
use crate::wire::{
    Aeth, AtomicEth, Bth, Ext, NakCode, Opcode, Operation, Packet, Reth, RnrTimer, Syndrome, XrcEth,
};
use platform::IoAddr;
use verbs::{Completion, Psn, QpConnect, QpNum, RecvWr, RemoteKey, Status, VerbsError, WorkKind, WrId};

/// A message whose first packet has been executed, and whose last has not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Inbound {
    Nothing,
    Send { received: u32 },
    Write { to: Range, total: u32 },
}

/// The acknowledge packet to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reply {
    None,
    /// A positive acknowledgement, due in the round after this one.
    Ack {
        round: u32,
    },
    /// A NAK for the request at the expected PSN.
    Nak(Syndrome),
    /// A NAK for the request whose refusal ends the connection.
    Refused,
}

/// A request with a fatal refusal.
#[derive(Clone, Copy)]
struct Refused {
    code: NakCode,
    /// The first PSN of the refused request.
    request: Psn,
    /// The PSN that the refusal names: that of the first response that is not sent.
    psn: Psn,
}

pub(super) struct Responder {
    qp: QpNum,
    recv: RecvQueue,
    remote_qp: QpNum,
    mtu: usize,
    rnr_timer: RnrTimer,

    /// The PSN of the next request packet.
    expected: Psn,
    /// The number of requests completed, modulo 2^24.
    msn: u32,
    inbound: Inbound,
    /// The XRC shared receive queue of the last request.
    srq: Option<u32>,
    /// True if a gap was reported. The packets after it are dropped without a report.
    gap_reported: bool,
    /// The PSN of the last packet dropped because an earlier one is missing.
    dropped: Psn,
    resources: Resources,
    reply: Reply,
    refused: Option<Refused>,
}

impl Responder {
    pub(super) fn new(qp: QpNum, recv: RecvQueue, max_rd_atomic: u8) -> Self {
        Self {
            qp,
            recv,
            remote_qp: QpNum::new(0),
            mtu: 256,
            rnr_timer: RnrTimer::from_code(0),
            expected: Psn::new(0),
            msn: 0,
            inbound: Inbound::Nothing,
            srq: None,
            gap_reported: false,
            dropped: Psn::new(0),
            resources: Resources::new(max_rd_atomic),
            reply: Reply::None,
            refused: None,
        }
    }

    pub(super) fn connect(&mut self, connect: &QpConnect) {
        self.remote_qp = connect.remote_qp;
        self.mtu = connect.mtu.bytes();
        self.rnr_timer = RnrTimer::at_least(connect.min_rnr_delay);
        self.expected = connect.recv_psn;
    }

    pub(super) fn post(
        &mut self,
        work: &RecvWr<'_>,
        memory: &dyn platform::Memory,
    ) -> Result<(), VerbsError> {
        self.recv.push(work, memory)
    }

    /// Returns the number of posted receives.
    pub(super) const fn receives_posted(&self) -> u32 {
        self.recv.len()
    }

    /// Removes the oldest receive, unless a message has begun to use it.
    pub(super) fn take_back(&mut self) -> Option<WrId> {
        if matches!(self.inbound, Inbound::Send { .. }) { None } else { self.recv.pop() }
    }

    pub(super) const fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Returns true after a fatal refusal.
    pub(super) const fn has_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Returns true if a response must be sent, now or in the next round.
    pub(super) fn has_work(&self) -> bool {
        self.resources.is_answering() || self.reply != Reply::None
    }

    /// Returns true if data for the peer is due: that of a READ, or the result of an atomic.
    pub(super) const fn is_answering(&self) -> bool {
        self.resources.is_answering()
    }

    /// Returns the next response packet, if one is due in `round`.
    pub(super) fn next_tx(&self, round: u32) -> Option<Tx> {
        if let Some(answer) = self.resources.next() {
            return Some(self.answer(answer));
        }
        let (syndrome, psn) = match (self.reply, self.refused) {
            (Reply::Ack { round: since }, _) if since != round => {
                (Syndrome::ACK, self.expected.add(0xff_ffff))
            }
            (Reply::Nak(syndrome), _) => (syndrome, self.expected),
            (Reply::Refused, Some(refused)) => (Syndrome::Nak(refused.code), refused.psn),
            _ => return None,
        };
        let bth = Bth::new(Opcode::rc(Operation::Acknowledge), self.remote_qp, psn);
        let aeth = Aeth { syndrome, msn: self.msn };
        Some(Tx { bth, ext: Ext::Aeth(aeth), len: 0, source: Source::Acknowledge })
    }

    fn answer(&self, answer: &Answer) -> Tx {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: answer.msn };
        let (operation, ext, len, source) = match answer.data {
            Data::Atomic { before } => {
                (Operation::AtomicAcknowledge, Ext::AtomicAck(aeth, before), 0, Source::AtomicResult)
            }
            Data::Read(Range { key, addr, len: left, srq }) => {
                let len = left.min(self.mtu as u32);
                let operation = match (answer.begun, len == left) {
                    (false, true) => Operation::ReadResponseOnly,
                    (false, false) => Operation::ReadResponseFirst,
                    (true, true) => Operation::ReadResponseLast,
                    (true, false) => Operation::ReadResponseMiddle,
                };
                let ext =
                    if operation == Operation::ReadResponseMiddle { Ext::None } else { Ext::Aeth(aeth) };
                (operation, ext, len, Source::ReadData { key, addr, srq })
            }
        };
        let bth = Bth::new(Opcode::rc(operation), self.remote_qp, answer.psn);
        Tx { bth, ext, len: len as usize, source }
    }

    /// Records that `tx`, which [`next_tx`](Self::next_tx) returned, was sent.
    pub(super) fn on_sent(&mut self, tx: &Tx) {
        if tx.source == Source::Acknowledge {
            self.reply = Reply::None;
        } else {
            self.resources.on_sent(tx.len as u32);
        }
    }

    /// Replaces the next response by a refusal, because its key has become invalid. The queue pair is in
    /// error.
    pub(super) fn refuse_answer(&mut self, env: &mut Env<'_>) {
        let Some((answer, request)) = self.resources.next().zip(self.resources.next_request()) else {
            return;
        };
        let (code, psn) = (NakCode::RemoteAccessError, answer.psn);
        env.counters.access_errors += 1;
        self.refuse(Refused { code, request, psn });
        self.resources.discard();
    }

    fn refuse(&mut self, refused: Refused) {
        self.refused = Some(refused);
        self.reply = Reply::Refused;
    }

    /// Handles a request.
    ///
    /// # Errors
    /// A fatal refusal puts the queue pair into the error state. A status in it is that of the receive in
    /// use.
    pub(super) fn on_request(
        &mut self,
        packet: &Packet<'_>,
        round: u32,
        env: &mut Env<'_>,
    ) -> Result<(), Option<Status>> {
        let psn = packet.bth.psn;
        if let Some(refused) = self.refused {
            let again = psn.distance_from(refused.request) >= 0 && psn.distance_from(refused.psn) <= 0;
            if again {
                // The peer did not receive the refusal.
                self.reply = Reply::Refused;
            }
            env.counters.rx_wrong_state += u64::from(!again);
            return Ok(());
        }
        let distance = psn.distance_from(self.expected);
        if distance > 0 {
            env.counters.rx_out_of_sequence += 1;
            // A gap is reported once (specification 9.7.5.1.1), but a peer that goes back and loses the
            // packet again makes a new gap.
            let known = self.gap_reported && psn.distance_from(self.dropped) > 0;
            self.dropped = psn;
            if !known {
                self.gap_reported = true;
                env.counters.tx_naks += 1;
                self.reply = Reply::Nak(Syndrome::Nak(NakCode::PsnSequenceError));
            }
            return Ok(());
        }
        if distance < 0 {
            env.counters.rx_duplicates += 1;
            let answered = self.on_duplicate(packet, round, env);
            env.counters.rx_stale_requests += u64::from(!answered);
            return Ok(());
        }
        match self.execute(packet, env) {
            Ok(Executed::Done { acknowledge }) => {
                // A packet that closes a gap is acknowledged even without a request: Linux ignores the report
                // of a second gap until it learns of progress after the first.
                let acknowledge = acknowledge || self.gap_reported;
                self.gap_reported = false;
                if self.reply == Reply::Nak(Syndrome::RnrNak(self.rnr_timer)) {
                    self.reply = Reply::None;
                }
                if acknowledge {
                    self.acknowledge(round);
                }
                Ok(())
            }
            Ok(Executed::NotReady) => {
                env.counters.tx_rnr_naks += 1;
                self.gap_reported = true;
                self.dropped = psn;
                self.reply = Reply::Nak(Syndrome::RnrNak(self.rnr_timer));
                Ok(())
            }
            Err(refusal) => Err(self.refuse_request(psn, &refusal, env)),
        }
    }

    /// Refuses the request at `psn` fatally, and returns the status of the receive in use.
    fn refuse_request(&mut self, psn: Psn, refusal: &Refusal, env: &mut Env<'_>) -> Option<Status> {
        match refusal.code {
            NakCode::RemoteAccessError => env.counters.access_errors += 1,
            NakCode::RemoteOperationalError => env.counters.operation_errors += 1,
            NakCode::InvalidRequest | NakCode::PsnSequenceError => env.counters.invalid_requests += 1,
        }
        self.refuse(Refused { code: refusal.code, request: psn, psn });
        let in_use = matches!(self.inbound, Inbound::Send { .. });
        refusal.recv.or(in_use.then_some(Status::RemoteInvalidRequest))
    }

    /// Schedules a positive acknowledgement, but never in place of a NAK.
    fn acknowledge(&mut self, round: u32) {
        if self.reply == Reply::None {
            self.reply = Reply::Ack { round };
        }
    }

    /// Executes the request packet that is next in sequence.
    fn execute(&mut self, packet: &Packet<'_>, env: &mut Env<'_>) -> Result<Executed, Refusal> {
        let operation = packet.bth.opcode.operation;
        let segment = Segment::of(operation).ok_or(Refusal::INVALID)?;
        let srq = enter(packet, env)?;
        if self.inbound != Inbound::Nothing && srq != self.srq {
            return Err(Refusal::INVALID);
        }
        self.srq = srq;
        match (segment, &packet.ext) {
            (Segment::Send { starts, ends }, _) => {
                self.check_length(packet.payload.len(), starts, ends)?;
                self.execute_send(packet, starts, ends, env)
            }
            (Segment::Write { starts, ends }, ext) => {
                self.check_length(packet.payload.len(), starts, ends)?;
                self.execute_write(packet, starts, ends, ext, env)
            }
            (Segment::Read, Ext::Reth(reth)) => self.execute_read(reth, env),
            (Segment::Atomic, Ext::Atomic(atomic)) => self.execute_atomic(operation, atomic, env),
            _ => Err(Refusal::INVALID),
        }
    }

    /// Checks the length of a packet. One that does not end a message must be full. One that ends a message
    /// may be short, but may be empty only if it also starts it.
    fn check_length(&self, len: usize, starts: bool, ends: bool) -> Result<(), Refusal> {
        let ok = if ends { len <= self.mtu && (starts || len > 0) } else { len == self.mtu };
        if ok { Ok(()) } else { Err(Refusal::INVALID) }
    }

    fn execute_send(
        &mut self,
        packet: &Packet<'_>,
        starts: bool,
        ends: bool,
        env: &mut Env<'_>,
    ) -> Result<Executed, Refusal> {
        let received = match (self.inbound, starts) {
            (Inbound::Nothing, true) => 0,
            (Inbound::Send { received }, false) => received,
            _ => return Err(Refusal::INVALID),
        };
        let Some(capacity) = self.recv.capacity() else { return Ok(Executed::NotReady) };
        let len = packet.payload.len() as u32;
        if len > capacity - received {
            return Err(Refusal { code: NakCode::InvalidRequest, recv: Some(Status::LocalLengthError) });
        }
        let refusal =
            Refusal { code: NakCode::RemoteOperationalError, recv: Some(Status::LocalProtectionError) };
        self.recv.scatter(received, packet.payload, env.memory).map_err(|_| refusal)?;
        let received = received + len;
        if ends {
            let invalidated = match packet.ext {
                Ext::Invalidate(key) => Some(key),
                _ => None,
            };
            if let Some(key) = invalidated {
                let recv = Some(Status::RemoteInvalidRequest);
                let refusal = Refusal { code: NakCode::RemoteAccessError, recv };
                env.remote.invalidate(key).map_err(|_| refusal)?;
            }
            self.inbound = Inbound::Nothing;
            let imm = immediate(&packet.ext);
            self.complete_recv(Status::Success, WorkKind::Recv, received, imm, invalidated, env);
        } else {
            self.inbound = Inbound::Send { received };
        }
        Ok(self.executed(packet, ends))
    }

    fn execute_write(
        &mut self,
        packet: &Packet<'_>,
        starts: bool,
        ends: bool,
        ext: &Ext,
        env: &mut Env<'_>,
    ) -> Result<Executed, Refusal> {
        let (to, total) = match (self.inbound, ext) {
            (Inbound::Nothing, Ext::Reth(reth) | Ext::RethImm(reth, _)) if starts => {
                (check_remote(reth.key, reth.addr, reth.len, Right::Write, env)?, reth.len)
            }
            (Inbound::Write { to, total }, _) if !starts => (to, total),
            _ => return Err(Refusal::INVALID),
        };
        let len = packet.payload.len() as u32;
        if len > to.len || ends != (len == to.len) {
            return Err(Refusal::INVALID);
        }
        let imm = immediate(ext);
        if imm.is_some() && self.recv.is_empty() {
            return Ok(Executed::NotReady);
        }
        if len > 0 {
            env.remote.write(to.key, to.addr, packet.payload)?;
        }
        if ends {
            self.inbound = Inbound::Nothing;
            if imm.is_some() {
                self.complete_recv(Status::Success, WorkKind::RecvWriteImm, total, imm, None, env);
            }
        } else {
            self.inbound = Inbound::Write { to: to.after(len), total };
        }
        Ok(self.executed(packet, ends))
    }

    /// Counts a SEND or WRITE packet as executed.
    fn executed(&mut self, packet: &Packet<'_>, ends: bool) -> Executed {
        self.expected = self.expected.add(1);
        if ends {
            self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
        }
        Executed::Done { acknowledge: packet.bth.ack_request }
    }

    fn execute_read(&mut self, reth: &Reth, env: &mut Env<'_>) -> Result<Executed, Refusal> {
        if self.inbound != Inbound::Nothing || !self.resources.have_room() {
            return Err(Refusal::INVALID);
        }
        let srq = self.srq;
        let range = Range { srq, ..check_remote(reth.key, reth.addr, reth.len, Right::Read, env)? };
        Ok(self.answer_first(packets(range.len, self.mtu), Data::Read(range)))
    }

    fn execute_atomic(
        &mut self,
        operation: Operation,
        atomic: &AtomicEth,
        env: &mut Env<'_>,
    ) -> Result<Executed, Refusal> {
        if self.inbound != Inbound::Nothing || !self.resources.have_room() {
            return Err(Refusal::INVALID);
        }
        if !atomic.addr.0.is_multiple_of(8) {
            return Err(Refusal::INVALID);
        }
        let Range { key, addr, .. } = check_remote(atomic.key, atomic.addr, 8, Right::Atomic, env)?;
        let before = if operation == Operation::FetchAdd {
            env.remote.fetch_add(key, addr, atomic.swap_add)?
        } else {
            env.remote.compare_swap(key, addr, atomic.compare, atomic.swap_add)?
        };
        Ok(self.answer_first(1, Data::Atomic { before }))
    }

    /// Counts a READ or atomic as executed and queues its response, which acknowledges everything before it.
    fn answer_first(&mut self, packets: u32, data: Data) -> Executed {
        self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
        self.resources.push(self.expected, packets, self.msn, data);
        self.expected = self.expected.add(packets);
        if let Reply::Ack { .. } = self.reply {
            self.reply = Reply::None;
        }
        Executed::Done { acknowledge: false }
    }

    /// Handles a request that was executed before. Returns false if it was dropped.
    fn on_duplicate(&mut self, packet: &Packet<'_>, round: u32, env: &mut Env<'_>) -> bool {
        let psn = packet.bth.psn;
        match (Segment::of(packet.bth.opcode.operation), &packet.ext) {
            (Some(Segment::Send { .. } | Segment::Write { .. }), _) => {
                self.acknowledge(round);
                true
            }
            (Some(Segment::Read), Ext::Reth(Reth { key, addr, len })) => {
                let srq = packet.bth.xrc.map(XrcEth::srq);
                let allowed =
                    enter(packet, env).is_ok() && check_remote(*key, *addr, *len, Right::Read, env).is_ok();
                let range = Range { key: *key, addr: *addr, len: *len, srq };
                self.resources.read_again(psn, range, self.mtu, allowed)
            }
            (Some(Segment::Atomic), _) => self.resources.atomic_again(psn),
            _ => false,
        }
    }

    fn complete_recv(
        &mut self,
        status: Status,
        kind: WorkKind,
        byte_len: u32,
        imm: Option<u32>,
        invalidated: Option<RemoteKey>,
        env: &mut Env<'_>,
    ) -> bool {
        let Some(id) = self.recv.pop() else { return false };
        let completion =
            Completion { byte_len, imm, invalidated, ..Completion::new(id, self.qp, status, kind) };
        env.completions.recv_ended(&completion);
        true
    }

    /// Completes all receives: the oldest with `status` if there is one, the others as flushed. Pending
    /// responses stay.
    pub(super) fn flush(&mut self, status: Option<Status>, env: &mut Env<'_>) {
        self.inbound = Inbound::Nothing;
        if let Some(status) = status {
            self.complete_recv(status, WorkKind::Recv, 0, None, None, env);
        }
        while self.complete_recv(Status::WorkRequestFlushed, WorkKind::Recv, 0, None, None, env) {}
    }

    /// Drops pending responses. In the error state only a refusal, and the responses that precede it, may
    /// still be sent.
    pub(super) fn discard_responses(&mut self) {
        if self.refused.is_none() {
            self.resources.discard();
            self.reply = Reply::None;
        }
    }
}

/// The result of a valid request packet.
enum Executed {
    Done { acknowledge: bool },
    NotReady,
}

/// Returns the range that a peer names, if the peer may reach it. A length of zero is not checked
/// (specification 9.7.4.1.5).
fn check_remote(
    key: RemoteKey,
    addr: IoAddr,
    len: u32,
    right: Right,
    env: &Env<'_>,
) -> Result<Range, Refusal> {
    if len > MAX_MESSAGE {
        return Err(Refusal::INVALID);
    }
    if len > 0 {
        env.remote.check(key, addr, len, right)?;
    }
    Ok(Range { key, addr, len, srq: None })
}

/// Returns the XRC shared receive queue of a request, if the peer may name it.
fn enter(packet: &Packet<'_>, env: &Env<'_>) -> Result<Option<u32>, Denied> {
    let srq = packet.bth.xrc.map(XrcEth::srq);
    srq.map_or(Ok(()), |srq| env.remote.enter(srq)).map(|()| srq)
}

/// Returns the immediate data of a SEND or WRITE.
const fn immediate(ext: &Ext) -> Option<u32> {
    match *ext {
        Ext::Imm(imm) | Ext::RethImm(_, imm) => Some(imm),
        _ => None,
    }
}
