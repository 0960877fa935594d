//! The receiver of an unreliable connection (specification 9.8.2.2), which accepts whole messages and drops
//! everything else.
//!
//! The sender learns nothing. After a packet that is missing or unusable, the rest of its message is dropped
//! too, until a packet starts the next message, whatever its PSN. The receive of an incomplete SEND serves
//! the next message. An incomplete WRITE leaves what it has written. Tests are in `tests/it/uc.rs`.
//!
//! | packet | result | counter | test |
//! |---|---|---|---|
//! | a packet that starts a message | accepted [^1] | [^2] | `a_loss_costs_the_message_it_hit` |
//! | any other with the wrong PSN, or without a start | dropped | `rx_out_of_sequence` | the same |
//! | first or middle not full, last empty, any above MTU | M | `invalid_requests` | `lengths_are_checked` |
//! | SEND, or WRITE with immediate, without a receive | M [^3] | `rx_no_receive` | `no_receive` |
//! | SEND longer than its receive | M | `rx_too_long` | `lengths_are_checked` |
//! | WRITE that key, range or right does not allow | M | `access_errors` | `keys_are_checked` |
//! | WRITE with more or fewer bytes than its RETH says | M | `invalid_requests` | `lengths_are_checked` |
//! | receive whose own memory is no longer valid | error | `operation_errors` | `memory_that_is_gone` |
//!
//! M: the message is dropped. error: the queue pair goes to the error state.
//!
//! [^1]: An incomplete message before it is dropped.
//!
//! [^2]: `rx_out_of_sequence` if its PSN is not the next.
//!
//! [^3]: Of a WRITE, only the immediate data is dropped.

use crate::transport::access::Right;
use crate::transport::recv_queue::RecvQueue;
use crate::transport::resources::Range;
use crate::transport::segment::Segment;
use crate::transport::{Env, MAX_MESSAGE};
use crate::wire::{Ext, Packet};
use platform::Memory;
use verbs::{Completion, Psn, QpConnect, QpNum, RecvWr, Status, VerbsError, WorkKind, WrId};

/// A message whose first packet was accepted, and whose last has not arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Inbound {
    Nothing,
    Send { received: u32 },
    Write { to: Range, total: u32 },
}

/// The reason for which the rest of a message is dropped.
enum DropReason {
    OutOfSequence,
    Invalid,
    NoReceive,
    TooLong,
    Access,
}

/// The result of a packet that is not accepted.
enum Refusal {
    /// The packet and the rest of its message are dropped.
    Dropped(DropReason),
    /// The queue pair fails, and the receive in use completes with this status.
    Fatal(Status),
}

impl From<DropReason> for Refusal {
    fn from(why: DropReason) -> Self {
        Self::Dropped(why)
    }
}

pub(super) struct Receiver {
    qp: QpNum,
    recv: RecvQueue,
    mtu: usize,
    /// The PSN of the next packet.
    expected: Psn,
    inbound: Inbound,
}

impl Receiver {
    pub(super) const fn new(qp: QpNum, recv: RecvQueue) -> Self {
        Self { qp, recv, mtu: 256, expected: Psn::new(0), inbound: Inbound::Nothing }
    }

    pub(super) const fn connect(&mut self, connect: &QpConnect) {
        self.mtu = connect.mtu.bytes();
        self.expected = connect.recv_psn;
    }

    pub(super) fn post(&mut self, work: &RecvWr<'_>, memory: &dyn Memory) -> Result<(), VerbsError> {
        self.recv.push(work, memory)
    }

    pub(in crate::transport) const fn expected_psn(&self) -> Psn {
        self.expected
    }

    pub(super) const fn receives_posted(&self) -> u32 {
        self.recv.len()
    }

    /// Removes the oldest receive, unless a message has begun to use it.
    pub(super) fn take_back(&mut self) -> Option<WrId> {
        if matches!(self.inbound, Inbound::Send { .. }) { None } else { self.recv.pop() }
    }

    /// Handles a packet.
    ///
    /// # Errors
    /// The status of the oldest receive, if the queue pair has failed.
    pub(super) fn on_packet(&mut self, packet: &Packet<'_>, env: &mut Env<'_>) -> Result<(), Status> {
        let in_sequence = packet.bth.psn == self.expected;
        self.expected = packet.bth.psn.add(1);
        match self.take(packet, in_sequence, env) {
            Ok(()) => Ok(()),
            Err(Refusal::Dropped(why)) => {
                self.inbound = Inbound::Nothing;
                *match why {
                    DropReason::OutOfSequence => &mut env.counters.rx_out_of_sequence,
                    DropReason::Invalid => &mut env.counters.invalid_requests,
                    DropReason::NoReceive => &mut env.counters.rx_no_receive,
                    DropReason::TooLong => &mut env.counters.rx_too_long,
                    DropReason::Access => &mut env.counters.access_errors,
                } += 1;
                Ok(())
            }
            Err(Refusal::Fatal(status)) => {
                env.counters.operation_errors += 1;
                Err(status)
            }
        }
    }

    fn take(&mut self, packet: &Packet<'_>, in_sequence: bool, env: &mut Env<'_>) -> Result<(), Refusal> {
        let segment = Segment::of(packet.bth.opcode.operation).ok_or(DropReason::Invalid)?;
        let (Segment::Send { starts, ends } | Segment::Write { starts, ends }) = segment else {
            return Err(DropReason::Invalid.into());
        };
        if starts {
            env.counters.rx_out_of_sequence += u64::from(!in_sequence || self.inbound != Inbound::Nothing);
            self.inbound = Inbound::Nothing;
        } else if !in_sequence || self.inbound == Inbound::Nothing {
            return Err(DropReason::OutOfSequence.into());
        }
        let len = packet.payload.len();
        let fits = if ends { len <= self.mtu && (starts || len > 0) } else { len == self.mtu };
        if !fits {
            return Err(DropReason::Invalid.into());
        }
        match (segment, self.inbound) {
            (Segment::Send { .. }, Inbound::Nothing) => self.take_send(packet, 0, ends, env),
            (Segment::Send { .. }, Inbound::Send { received }) => self.take_send(packet, received, ends, env),
            (Segment::Write { .. }, Inbound::Nothing) => {
                let (Ext::Reth(reth) | Ext::RethImm(reth, _)) = packet.ext else {
                    return Err(DropReason::Invalid.into());
                };
                if reth.len > MAX_MESSAGE {
                    return Err(DropReason::Invalid.into());
                }
                // A length of zero needs no key (specification 9.7.4.1.5).
                if reth.len > 0 {
                    env.remote
                        .check(reth.key, reth.addr, reth.len, Right::Write)
                        .map_err(|_| DropReason::Access)?;
                }
                let to = Range { key: reth.key, addr: reth.addr, len: reth.len, srq: None };
                self.take_write(packet, to, reth.len, ends, env)
            }
            (Segment::Write { .. }, Inbound::Write { to, total }) => {
                self.take_write(packet, to, total, ends, env)
            }
            _ => Err(DropReason::Invalid.into()),
        }
    }

    fn take_send(
        &mut self,
        packet: &Packet<'_>,
        received: u32,
        ends: bool,
        env: &mut Env<'_>,
    ) -> Result<(), Refusal> {
        let capacity = self.recv.capacity().ok_or(DropReason::NoReceive)?;
        let total = received + packet.payload.len() as u32;
        if total > capacity {
            return Err(DropReason::TooLong.into());
        }
        let gone = |_| Refusal::Fatal(Status::LocalProtectionError);
        self.recv.scatter(received, packet.payload, env.memory).map_err(gone)?;
        if ends {
            self.inbound = Inbound::Nothing;
            self.complete(WorkKind::Recv, total, immediate(&packet.ext), env);
        } else {
            self.inbound = Inbound::Send { received: total };
        }
        Ok(())
    }

    fn take_write(
        &mut self,
        packet: &Packet<'_>,
        to: Range,
        total: u32,
        ends: bool,
        env: &mut Env<'_>,
    ) -> Result<(), Refusal> {
        let len = packet.payload.len() as u32;
        if len > to.len || ends != (len == to.len) {
            return Err(DropReason::Invalid.into());
        }
        if len > 0 {
            env.remote.write(to.key, to.addr, packet.payload).map_err(|_| DropReason::Access)?;
        }
        if !ends {
            self.inbound = Inbound::Write { to: to.after(len), total };
            return Ok(());
        }
        self.inbound = Inbound::Nothing;
        if let Some(imm) = immediate(&packet.ext) {
            if self.recv.is_empty() {
                return Err(DropReason::NoReceive.into());
            }
            self.complete(WorkKind::RecvWriteImm, total, Some(imm), env);
        }
        Ok(())
    }

    fn complete(&mut self, kind: WorkKind, byte_len: u32, imm: Option<u32>, env: &mut Env<'_>) {
        if let Some(id) = self.recv.pop() {
            let done = Completion::new(id, self.qp, Status::Success, kind);
            env.completions.recv_ended(&Completion { byte_len, imm, ..done });
        }
    }

    /// Completes all receives: the oldest with `status` if there is one, the others as flushed.
    pub(super) fn flush(&mut self, status: Option<Status>, env: &mut Env<'_>) {
        self.inbound = Inbound::Nothing;
        let mut status = status.unwrap_or(Status::WorkRequestFlushed);
        while let Some(id) = self.recv.pop() {
            env.completions.recv_ended(&Completion::new(id, self.qp, status, WorkKind::Recv));
            status = Status::WorkRequestFlushed;
        }
    }
}

/// Returns the immediate data of a SEND or WRITE.
const fn immediate(ext: &Ext) -> Option<u32> {
    match *ext {
        Ext::Imm(imm) | Ext::RethImm(_, imm) => Some(imm),
        _ => None,
    }
}
