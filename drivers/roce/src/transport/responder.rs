//! The responder: executes request packets in order and answers them (specification 9.7.4, 9.7.5).
//!
//! Responses leave in PSN order: READ data and atomic results, then one acknowledgement for all that was executed
//! since the last one. A positive acknowledgement waits for the next call of `progress`, so that what the application
//! sends in reply goes out first and several requests share one.
//!
//! # What is refused, and how
//!
//! Tests are in `tests/it/responder_errors.rs` and `tests/it/responder_duplicates.rs`. Classes are those of the
//! specification, 9.9.3: B leaves the queue pair as it is; A, C and J end it, and the receive in use ends with the
//! status given, or as flushed if the request used none. A refusal is repeated when the peer, which did not hear it,
//! repeats its request.
//!
//! | request | class | syndrome | receive in use | test |
//! |---|---|---|---|---|
//! | PSN after the expected one: once per gap, again when the peer went back | B | NAK PSN sequence error | | `a_gap_is_reported_once` |
//! | SEND or WRITE with immediate without a receive | B | RNR NAK, timer code of the queue pair | | `no_receive` |
//! | middle or last without first, or first within a message | C | NAK invalid request | remote invalid request | `operations_out_of_sequence` |
//! | response or reserved operation as a request | | dropped: malformed | | `operations_that_are_no_requests` |
//! | first or middle not full, last empty, any longer than the MTU | C | NAK invalid request | remote invalid request | `lengths_of_packets` |
//! | WRITE whose bytes are more or fewer than its RETH says | C | NAK invalid request | | `a_write_keeps_to_its_length` |
//! | READ or WRITE of more than 2^31 bytes | C | NAK invalid request | | `lengths_of_messages` |
//! | SEND longer than its receive | C | NAK invalid request (Linux up to 6.1: remote operational error) | local length error | `a_send_too_long` |
//! | atomic on an address that is no multiple of 8 | C | NAK invalid request | | `a_misaligned_atomic` |
//! | more READs and atomics than `max_rd_atomic` unanswered | C | NAK invalid request | | `too_many_reads` |
//! | key, range or right that is not given | C | NAK remote access error | | `access` |
//! | XRC request for a shared receive queue that its peer may not name | C | NAK remote access error | | `xrc.rs` |
//! | XRC message whose packets name two shared receive queues | C | NAK invalid request | remote invalid request | `xrc.rs` |
//! | key lost while a READ is answered | C | NAK remote access error in place of the response | | `a_key_lost_in_mid_read` |
//! | SEND that invalidates a key it may not | J | NAK remote access error (Linux: an acknowledgement) | remote invalid request | `invalidate_refused` |
//! | receive whose own memory is gone | A | NAK remote operational error | local protection error | `a_receive_without_memory` |
//!
//! A repeated request (specification 9.7.5.1.5) is never executed: a SEND or WRITE is acknowledged, a READ or a part of
//! one is answered from memory as it is, an atomic with the value it gave. The last `max_rd_atomic` READs and atomics
//! are remembered for that, which is as many as a peer may have outstanding. One that is older, or names another
//! range than the first time, is dropped and counted: the peer has had its answer.

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

/// A message of which the first packet has been executed and the last not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Inbound {
    Nothing,
    Send { received: u32 },
    Write { to: Range, total: u32 },
}

/// An acknowledge packet to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reply {
    None,
    /// Positive; due in the round after this one.
    Ack {
        round: u32,
    },
    /// Negative, for the request at the expected PSN.
    Nak(Syndrome),
    /// The refusal.
    Refused,
}

/// A request that was refused for good.
#[derive(Clone, Copy)]
struct Refused {
    code: NakCode,
    /// First PSN of the request.
    request: Psn,
    /// The PSN that the refusal names: that of the first response that is not given.
    psn: Psn,
}

pub(super) struct Responder {
    qp: QpNum,
    recv: RecvQueue,
    remote_qp: QpNum,
    mtu: usize,
    rnr_timer: RnrTimer,

    /// PSN of the next request packet.
    expected: Psn,
    /// Requests completed, modulo 2^24.
    msn: u32,
    inbound: Inbound,
    /// The XRC shared receive queue that the last request was for.
    srq: Option<u32>,
    /// A gap was reported; what follows it is dropped in silence.
    gap_reported: bool,
    /// The last packet that was dropped because one before it is missing.
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

    /// Receives that are posted.
    pub(super) const fn receives_posted(&self) -> u32 {
        self.recv.len()
    }

    /// Takes the oldest receive back, if no message has begun to use it.
    pub(super) fn take_back(&mut self) -> Option<WrId> {
        if matches!(self.inbound, Inbound::Send { .. }) { None } else { self.recv.pop() }
    }

    pub(super) const fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Whether a request was refused for good.
    pub(super) const fn has_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Whether anything is to be sent, now or in the next round.
    pub(super) fn has_work(&self) -> bool {
        self.resources.is_answering() || self.reply != Reply::None
    }

    /// The next response packet, if one is due in `round`.
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

    /// `tx`, which [`next_tx`](Self::next_tx) gave, was sent.
    pub(super) fn on_sent(&mut self, tx: &Tx) {
        if tx.source == Source::Acknowledge {
            self.reply = Reply::None;
        } else {
            self.resources.on_sent(tx.len as u32);
        }
    }

    /// The next answer cannot be given: its key is not good any more. The queue pair is in error.
    pub(super) fn refuse_answer(&mut self, env: &mut Env<'_>) {
        let Some((answer, request)) = self.resources.next().zip(self.resources.next_request()) else {
            return;
        };
        let (code, psn) = (NakCode::RemoteAccessError, answer.psn);
        env.counters.access_errors += 1;
        self.refuse(Refused { code, request, psn });
        self.resources.silence();
    }

    fn refuse(&mut self, refused: Refused) {
        self.refused = Some(refused);
        self.reply = Reply::Refused;
    }

    /// Handles a request. `Err`: it was refused for good, and the queue pair is in error; `Some` status ends the
    /// receive that it used.
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
                // The peer did not hear it.
                self.reply = Reply::Refused;
            }
            env.counters.rx_wrong_state += u64::from(!again);
            return Ok(());
        }
        let distance = psn.distance_from(self.expected);
        if distance > 0 {
            env.counters.rx_out_of_sequence += 1;
            // Once a gap (specification 9.7.5.1.1), but a peer that goes back and loses the packet again makes a new one.
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
                // A packet that closes a gap is acknowledged, asked or not: Linux takes no notice of a second gap before
                // it has heard of progress after the first.
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
            Err(Refusal { code, recv }) => {
                match code {
                    NakCode::RemoteAccessError => env.counters.access_errors += 1,
                    NakCode::RemoteOperationalError => env.counters.operation_errors += 1,
                    NakCode::InvalidRequest | NakCode::PsnSequenceError => {
                        env.counters.invalid_requests += 1;
                    }
                }
                self.refuse(Refused { code, request: psn, psn });
                let in_use = matches!(self.inbound, Inbound::Send { .. });
                Err(recv.or(in_use.then_some(Status::RemoteInvalidRequest)))
            }
        }
    }

    /// A positive acknowledgement becomes due; never instead of a NAK.
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

    /// A packet that does not end a message is full; one that does may be short, but is empty only if it also starts it.
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

    /// Counts a READ or atomic as executed and queues its answer, which acknowledges all before it.
    fn answer_first(&mut self, packets: u32, data: Data) -> Executed {
        self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
        self.resources.push(self.expected, packets, self.msn, data);
        self.expected = self.expected.add(packets);
        if let Reply::Ack { .. } = self.reply {
            self.reply = Reply::None;
        }
        Executed::Done { acknowledge: false }
    }

    /// A request that was executed before; `false` if it was dropped.
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

    /// Ends all receives: the oldest with `status` if there is one, the rest as flushed. What the peer is owed stays.
    pub(super) fn flush(&mut self, status: Option<Status>, env: &mut Env<'_>) {
        self.inbound = Inbound::Nothing;
        if let Some(status) = status {
            self.complete_recv(status, WorkKind::Recv, 0, None, None, env);
        }
        while self.complete_recv(Status::WorkRequestFlushed, WorkKind::Recv, 0, None, None, env) {}
    }

    /// Forgets what the peer is owed: nothing but a refusal, and the answers before it, leaves a queue pair in error.
    pub(super) fn silence(&mut self) {
        if self.refused.is_none() {
            self.resources.silence();
            self.reply = Reply::None;
        }
    }
}

/// What became of a request packet that breaks no rule.
enum Executed {
    Done { acknowledge: bool },
    NotReady,
}

/// The range that a peer names, if it may reach it. Nothing is checked for a length of zero (specification 9.7.4.1.5).
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

/// The XRC shared receive queue that a request is for, if its peer may name it.
fn enter(packet: &Packet<'_>, env: &Env<'_>) -> Result<Option<u32>, Denied> {
    let srq = packet.bth.xrc.map(XrcEth::srq);
    srq.map_or(Ok(()), |srq| env.remote.enter(srq)).map(|()| srq)
}

/// The immediate data of a SEND or WRITE.
const fn immediate(ext: &Ext) -> Option<u32> {
    match *ext {
        Ext::Imm(imm) | Ext::RethImm(_, imm) => Some(imm),
        _ => None,
    }
}
