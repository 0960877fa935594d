//! The responder: executes request packets in order and answers them (specification 9.7.4, 9.7.5).
//!
//! Responses leave in PSN order: READ data and atomic results from a list sorted by PSN, then one acknowledgement for
//! all that was executed since the last one. A positive acknowledgement waits for the next call of `progress`, so
//! that what the application sends in reply goes out first and several requests share one.

use super::qp::{Source, Tx};
use super::recv_queue::RecvQueue;
use super::segment::{Refusal, Segment};
use super::send_queue::packets;
use super::{Env, MAX_MESSAGE, MAX_RD_ATOMIC};
use crate::wire::{Aeth, AtomicEth, Bth, Ext, NakCode, Opcode, Operation, Packet, Reth, RnrTimer, Syndrome};
use alloc::collections::VecDeque;
use platform::IoAddr;
use verbs::{Completion, Psn, QpConnect, QpNum, RecvWr, RemoteKey, Status, VerbsError, WorkKind};

/// Requests remembered, to answer repeated ones; more than a peer may have in flight.
const RESOURCES: usize = 2 * MAX_RD_ATOMIC as usize;

/// Distance from `b` up to `a`, modulo 2^24.
const fn ahead(a: Psn, b: Psn) -> u32 {
    a.get().wrapping_sub(b.get()) & 0xff_ffff
}

/// A message of which the first packet has been executed and the last not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Inbound {
    Nothing,
    Send { received: u32 },
    Write { addr: IoAddr, left: u32, total: u32 },
}

/// A READ or atomic that was executed.
#[derive(Clone, Copy)]
struct Resource {
    first: Psn,
    packets: u32,
    msn: u32,
    /// The value before, of an atomic.
    before: Option<u64>,
}

/// What is still to be sent of the answer to a READ or atomic.
#[derive(Clone, Copy)]
struct Pending {
    /// PSN of the next packet.
    psn: Psn,
    msn: u32,
    data: Data,
}

#[derive(Clone, Copy)]
enum Data {
    /// READ data: what is left, and whether the request's first packet has been sent.
    Read {
        addr: IoAddr,
        left: u32,
        begun: bool,
    },
    Atomic {
        before: u64,
    },
}

/// An acknowledge packet to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reply {
    None,
    /// Positive; due in the round after this one.
    Ack {
        round: u32,
    },
    Nak(Syndrome),
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
    /// A gap was reported; what follows it is dropped in silence.
    gap_reported: bool,
    /// The last packet that was dropped because one before it is missing.
    dropped: Psn,
    resources: VecDeque<Resource>,
    /// Sorted by PSN.
    pending: VecDeque<Pending>,
    reply: Reply,
    /// The request at `expected` was refused for good.
    refused: Option<NakCode>,
}

impl Responder {
    pub(super) fn new(qp: QpNum, recv: RecvQueue) -> Self {
        Self {
            qp,
            recv,
            remote_qp: QpNum::new(0),
            mtu: 256,
            rnr_timer: RnrTimer::from_code(0),
            expected: Psn::new(0),
            msn: 0,
            inbound: Inbound::Nothing,
            gap_reported: false,
            dropped: Psn::new(0),
            resources: VecDeque::with_capacity(RESOURCES),
            pending: VecDeque::with_capacity(RESOURCES),
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

    /// Whether a request was refused for good.
    pub(super) const fn has_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Whether anything is to be sent, now or in the next round.
    pub(super) fn has_work(&self) -> bool {
        !self.pending.is_empty() || self.reply != Reply::None
    }

    /// The next response packet, if one is due in `round`.
    pub(super) fn next_tx(&self, round: u32) -> Option<Tx> {
        if let Some(pending) = self.pending.front() {
            return Some(self.answer(pending));
        }
        let (syndrome, psn) = match self.reply {
            Reply::Ack { round: since } if since != round => (Syndrome::ACK, self.expected.add(0xff_ffff)),
            Reply::Nak(syndrome) => (syndrome, self.expected),
            _ => return None,
        };
        let bth = Bth::new(Opcode::rc(Operation::Acknowledge), self.remote_qp, psn);
        let aeth = Aeth { syndrome, msn: self.msn };
        Some(Tx { bth, ext: Ext::Aeth(aeth), len: 0, source: Source::Acknowledge })
    }

    fn answer(&self, pending: &Pending) -> Tx {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: pending.msn };
        let (operation, ext, len, source) = match pending.data {
            Data::Atomic { before } => {
                (Operation::AtomicAcknowledge, Ext::AtomicAck(aeth, before), 0, Source::AtomicResult)
            }
            Data::Read { addr, left, begun } => {
                let len = left.min(self.mtu as u32);
                let operation = match (begun, len == left) {
                    (false, true) => Operation::ReadResponseOnly,
                    (false, false) => Operation::ReadResponseFirst,
                    (true, true) => Operation::ReadResponseLast,
                    (true, false) => Operation::ReadResponseMiddle,
                };
                let middle = operation == Operation::ReadResponseMiddle;
                (operation, if middle { Ext::None } else { Ext::Aeth(aeth) }, len, Source::ReadData { addr })
            }
        };
        let bth = Bth::new(Opcode::rc(operation), self.remote_qp, pending.psn);
        Tx { bth, ext, len: len as usize, source }
    }

    /// `tx`, which [`next_tx`](Self::next_tx) gave, was sent.
    pub(super) fn on_sent(&mut self, tx: &Tx) {
        if tx.source == Source::Acknowledge {
            self.reply = Reply::None;
            return;
        }
        let Some(pending) = self.pending.front_mut() else { return };
        let sent = tx.len as u32;
        match &mut pending.data {
            Data::Read { addr, left, begun } if *left > sent => {
                *addr = IoAddr(addr.0.wrapping_add(u64::from(sent)));
                *left -= sent;
                *begun = true;
                pending.psn = pending.psn.add(1);
            }
            _ => {
                self.pending.pop_front();
            }
        }
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
        let distance = psn.distance_from(self.expected);
        if let Some(code) = self.refused {
            // The peer did not hear it.
            if distance == 0 {
                self.reply = Reply::Nak(Syndrome::Nak(code));
            }
            return Ok(());
        }
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
            self.on_duplicate(packet, round, env);
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
            Err(refusal) => {
                match refusal.code {
                    NakCode::RemoteAccessError => env.counters.access_errors += 1,
                    _ => env.counters.invalid_requests += 1,
                }
                self.refused = Some(refusal.code);
                self.reply = Reply::Nak(Syndrome::Nak(refusal.code));
                Err(refusal.recv)
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
        let segment = match Segment::of(operation) {
            Some(segment) => segment,
            // The one key cannot be invalidated by a peer.
            None => return Err(Refusal::ACCESS),
        };
        match (segment, &packet.ext) {
            (Segment::Send { starts, ends }, ext) => {
                self.check_length(packet.payload.len(), starts, ends)?;
                self.execute_send(packet, starts, ends, immediate(ext), env)
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
        imm: Option<u32>,
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
        if ends {
            self.inbound = Inbound::Nothing;
            self.complete_recv(Status::Success, WorkKind::Recv, received + len, imm, env);
        } else {
            self.inbound = Inbound::Send { received: received + len };
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
        let (addr, left, total) = match (self.inbound, ext) {
            (Inbound::Nothing, Ext::Reth(reth) | Ext::RethImm(reth, _)) if starts => {
                check_remote(reth.key, reth.addr, reth.len, env)?;
                (reth.addr, reth.len, reth.len)
            }
            (Inbound::Write { addr, left, total }, _) if !starts => (addr, left, total),
            _ => return Err(Refusal::INVALID),
        };
        let len = packet.payload.len() as u32;
        let left = left.checked_sub(len).ok_or(Refusal::INVALID)?;
        if ends != (left == 0) {
            return Err(Refusal::INVALID);
        }
        let imm = immediate(ext);
        if imm.is_some() && self.recv.is_empty() {
            return Ok(Executed::NotReady);
        }
        env.memory.write(addr, packet.payload)?;
        if ends {
            self.inbound = Inbound::Nothing;
            if imm.is_some() {
                self.complete_recv(Status::Success, WorkKind::RecvWriteImm, total, imm, env);
            }
        } else {
            self.inbound = Inbound::Write { addr: IoAddr(addr.0.wrapping_add(u64::from(len))), left, total };
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
        if self.inbound != Inbound::Nothing || self.pending.len() >= RESOURCES {
            return Err(Refusal::INVALID);
        }
        check_remote(reth.key, reth.addr, reth.len, env)?;
        let data = Data::Read { addr: reth.addr, left: reth.len, begun: false };
        self.remember(packets(reth.len, self.mtu), None, data);
        Ok(Executed::Done { acknowledge: false })
    }

    fn execute_atomic(
        &mut self,
        operation: Operation,
        atomic: &AtomicEth,
        env: &mut Env<'_>,
    ) -> Result<Executed, Refusal> {
        if self.inbound != Inbound::Nothing || self.pending.len() >= RESOURCES {
            return Err(Refusal::INVALID);
        }
        if !atomic.addr.0.is_multiple_of(8) {
            return Err(Refusal::INVALID);
        }
        check_remote(atomic.key, atomic.addr, 8, env)?;
        let before = if operation == Operation::FetchAdd {
            env.memory.fetch_add(atomic.addr, atomic.swap_add)?
        } else {
            env.memory.compare_swap(atomic.addr, atomic.compare, atomic.swap_add)?
        };
        self.remember(1, Some(before), Data::Atomic { before });
        Ok(Executed::Done { acknowledge: false })
    }

    /// Counts a READ or atomic as executed and queues its answer, which acknowledges all before it.
    fn remember(&mut self, packets: u32, before: Option<u64>, data: Data) {
        self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
        if self.resources.len() >= RESOURCES {
            self.resources.pop_front();
        }
        self.resources.push_back(Resource { first: self.expected, packets, msn: self.msn, before });
        self.pending.push_back(Pending { psn: self.expected, msn: self.msn, data });
        self.expected = self.expected.add(packets);
        if let Reply::Ack { .. } = self.reply {
            self.reply = Reply::None;
        }
    }

    /// A request that was executed before: READs are answered again, atomics with what they gave then, the rest is
    /// acknowledged again (specification 9.7.5.1.5).
    fn on_duplicate(&mut self, packet: &Packet<'_>, round: u32, env: &mut Env<'_>) {
        let psn = packet.bth.psn;
        let known = self.resources.iter().find(|r| ahead(psn, r.first) < r.packets).copied();
        let data = match (Segment::of(packet.bth.opcode.operation), &packet.ext, known) {
            (Some(Segment::Send { .. } | Segment::Write { .. }), ..) => {
                self.acknowledge(round);
                return;
            }
            (Some(Segment::Read), Ext::Reth(reth), Some(known)) => {
                let done = ahead(psn, known.first);
                let fits = reth.len <= MAX_MESSAGE && done + packets(reth.len, self.mtu) <= known.packets;
                if known.before.is_some()
                    || !fits
                    || check_remote(reth.key, reth.addr, reth.len, env).is_err()
                {
                    return;
                }
                Data::Read { addr: reth.addr, left: reth.len, begun: done > 0 }
            }
            (Some(Segment::Atomic), _, Some(Resource { before: Some(before), .. })) => {
                Data::Atomic { before }
            }
            _ => return,
        };
        let Some(Resource { first, packets, msn, .. }) = known else { return };
        // What is still being answered is sent anyway, or again from here.
        let again = Pending { psn, msn, data };
        if let Some(current) = self.pending.iter_mut().find(|p| ahead(p.psn, first) < packets) {
            if ahead(current.psn, first) > ahead(psn, first) {
                *current = again;
            }
            return;
        }
        // Repeated ones leave room for as many new ones as a peer may ask for.
        if self.pending.len() < usize::from(MAX_RD_ATOMIC) {
            let at = self.pending.partition_point(|p| p.psn.distance_from(psn) < 0);
            self.pending.insert(at, again);
        }
    }

    fn complete_recv(
        &mut self,
        status: Status,
        kind: WorkKind,
        byte_len: u32,
        imm: Option<u32>,
        env: &mut Env<'_>,
    ) -> bool {
        let Some(id) = self.recv.pop() else { return false };
        env.completions.recv_ended(&Completion { id, qp: self.qp, status, kind, byte_len, imm });
        true
    }

    /// Ends all receives: the oldest with `status` if there is one, the rest as flushed. What the peer is owed stays.
    pub(super) fn flush(&mut self, status: Option<Status>, env: &mut Env<'_>) {
        self.inbound = Inbound::Nothing;
        if let Some(status) = status {
            self.complete_recv(status, WorkKind::Recv, 0, None, env);
        }
        while self.complete_recv(Status::WorkRequestFlushed, WorkKind::Recv, 0, None, env) {}
    }

    /// Forgets what the peer is owed: nothing but a refusal leaves a queue pair in error.
    pub(super) fn silence(&mut self) {
        if self.refused.is_none() {
            self.pending.clear();
            self.reply = Reply::None;
        }
    }
}

/// What became of a request packet that breaks no rule.
enum Executed {
    Done { acknowledge: bool },
    NotReady,
}

/// Whether a peer may reach this range. Nothing is checked for a length of zero (specification 9.7.4.1.5).
fn check_remote(key: RemoteKey, addr: IoAddr, len: u32, env: &Env<'_>) -> Result<(), Refusal> {
    if len > MAX_MESSAGE {
        return Err(Refusal::INVALID);
    }
    if len > 0 && (key != env.key || env.memory.check(addr, u64::from(len)).is_err()) {
        return Err(Refusal::ACCESS);
    }
    Ok(())
}

/// The immediate data of a SEND or WRITE.
const fn immediate(ext: &Ext) -> Option<u32> {
    match *ext {
        Ext::Imm(imm) | Ext::RethImm(_, imm) => Some(imm),
        _ => None,
    }
}
