//! The unreliable datagram service (specification 9.8.3): a message is one packet, each work request names
//! its own destination, and no packet is acknowledged.
//!
//! A datagram is dropped, and counted, unless it carries the Q_Key and fits into the oldest receive after the
//! [`GRH_LEN`] bytes about its source. A dropped datagram uses no receive.

use super::Env;
use super::qp::{Limits, Source, Tx};
use super::recv_queue::RecvQueue;
use super::send_queue::SendQueue;
use crate::wire::{Bth, Deth, Ext, Headers, Opcode, Operation, Packet, Service, Template};
use alloc::boxed::Box;
use alloc::vec;
use platform::Memory;
use verbs::{
    Completion, GRH_LEN, PathMtu, Payload, Psn, QKey, QpNum, RecvWr, SendOp, SendWr, Status, UdSendWr,
    VerbsError, WorkKind, WrId,
};

/// The path to a datagram's receiver.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The headers of the frame.
    pub headers: Headers,
    /// True if the receiver is a queue pair of the same RNIC.
    pub within: bool,
}

/// The destination of a send work request.
#[derive(Clone, Copy)]
struct Destination {
    route: Route,
    qp: QpNum,
    qkey: QKey,
}

/// An unreliable datagram queue pair.
pub struct DatagramQp {
    number: QpNum,
    qkey: QKey,
    /// The maximum length of a message, in bytes.
    mtu: usize,
    queue: SendQueue,
    /// The destinations, by position in the queue modulo the array's length.
    destinations: Box<[Option<Destination>]>,
    recv: RecvQueue,
    /// The PSN of the next datagram, which receivers ignore.
    psn: Psn,
    /// True while sends, or receives, complete as flushed.
    send_ended: bool,
    recv_ended: bool,
}

impl DatagramQp {
    /// Makes a queue pair for messages of up to `mtu`, and allocates everything that it will need.
    #[must_use]
    pub fn new(number: QpNum, qkey: QKey, first: Psn, mtu: PathMtu, limits: &Limits) -> Self {
        let slots = (limits.send_depth as usize).next_power_of_two();
        Self {
            number,
            qkey,
            mtu: mtu.bytes(),
            queue: SendQueue::new(limits.send_depth, limits.max_sge, limits.max_inline),
            destinations: vec![None; slots].into(),
            recv: RecvQueue::new(limits.recv_depth, limits.max_sge),
            psn: first,
            send_ended: false,
            recv_ended: false,
        }
    }

    /// Returns the queue pair's number.
    #[must_use]
    pub const fn number(&self) -> QpNum {
        self.number
    }

    /// Sets the Q_Key that datagrams must carry from now on.
    pub const fn set_qkey(&mut self, qkey: QKey) {
        self.qkey = qkey;
    }

    /// Sets the PSN of the next datagram.
    pub const fn set_psn(&mut self, psn: Psn) {
        self.psn = psn;
    }

    /// Resumes sending after an error of the send queue (transition from SQE to RTS).
    pub const fn resume_sending(&mut self) {
        self.send_ended = false;
    }

    /// Returns two flags: true if sends complete as flushed, and true if receives do.
    #[must_use]
    pub const fn has_ended(&self) -> (bool, bool) {
        (self.send_ended, self.recv_ended)
    }

    /// Returns the number of posted receives.
    #[must_use]
    pub const fn receives_posted(&self) -> u32 {
        self.recv.len()
    }

    /// Removes the oldest receive.
    pub fn take_back_receive(&mut self) -> Option<WrId> {
        self.recv.pop()
    }

    /// Queues a datagram that is sent by `route`. After an error it completes as flushed at once.
    pub fn post_send(
        &mut self,
        work: &UdSendWr<'_>,
        route: Route,
        env: &mut Env<'_>,
    ) -> Result<(), VerbsError> {
        let UdSendWr { id, remote_qp, data, imm, signaled, solicited, .. } = *work;
        let len = match data {
            Payload::Inline(bytes) => bytes.len() as u64,
            Payload::Gather(list) => list.iter().map(|sge| u64::from(sge.len)).sum(),
        };
        if len > self.mtu as u64 {
            return Err(VerbsError::InvalidArgument);
        }
        let position = self.queue.tail();
        let send = SendWr { id, op: SendOp::Send { data, imm }, signaled, solicited, fence: false };
        self.queue.push(&send, Psn::new(0), self.mtu, env.memory)?;
        let qkey = if work.qkey.is_controlled() { self.qkey } else { work.qkey };
        let slot = self.slot(position);
        if let Some(destination) = self.destinations.get_mut(slot) {
            *destination = Some(Destination { route, qp: remote_qp, qkey });
        }
        if self.send_ended {
            self.flush_send(None, env);
        }
        Ok(())
    }

    /// Queues a receive. After an error it completes as flushed at once.
    pub fn post_recv(&mut self, work: &RecvWr<'_>, env: &mut Env<'_>) -> Result<(), VerbsError> {
        self.recv.push(work, env.memory)?;
        if self.recv_ended {
            self.flush_recv(None, env);
        }
        Ok(())
    }

    /// Handles a datagram for this queue pair. The 40 bytes `origin` are written before the datagram.
    pub fn receive(&mut self, packet: &Packet<'_>, origin: &[u8; GRH_LEN as usize], env: &mut Env<'_>) {
        let (deth, imm) = match packet.ext {
            Ext::Deth(deth) => (deth, None),
            Ext::DethImm(deth, imm) => (deth, Some(imm)),
            _ => {
                env.counters.rx_wrong_service += 1;
                return;
            }
        };
        if QKey(deth.qkey) != self.qkey {
            env.counters.rx_bad_qkey += 1;
            return;
        }
        let Some(capacity) = self.recv.capacity() else {
            env.counters.rx_no_receive += 1;
            return;
        };
        let len = packet.payload.len();
        if len > self.mtu || GRH_LEN + len as u32 > capacity {
            env.counters.rx_too_long += 1;
            return;
        }
        let scattered = self
            .recv
            .scatter(0, origin, env.memory)
            .and_then(|()| self.recv.scatter(GRH_LEN, packet.payload, env.memory));
        if scattered.is_err() {
            env.counters.operation_errors += 1;
            env.counters.qp_errors += 1;
            self.recv_ended = true;
            self.flush_recv(Some(Status::LocalProtectionError), env);
            return;
        }
        let Some(id) = self.recv.pop() else { return };
        env.completions.recv_ended(&Completion {
            byte_len: GRH_LEN + len as u32,
            imm,
            src_qp: Some(deth.src_qp),
            ..Completion::new(id, self.number, Status::Success, WorkKind::Recv)
        });
    }

    /// Returns true if [`next_tx`](Self::next_tx) returns a datagram.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.queue.front().is_some()
    }

    /// Returns the next datagram.
    #[must_use]
    pub fn next_tx(&self) -> Option<Tx> {
        let wqe = self.queue.front()?;
        let to = self.destination()?;
        let deth = Deth { qkey: to.qkey.0, reserved: 0, src_qp: self.number };
        let (operation, ext) = match wqe.imm {
            Some(imm) => (Operation::SendOnlyImm, Ext::DethImm(deth, imm)),
            None => (Operation::SendOnly, Ext::Deth(deth)),
        };
        let mut bth = Bth::new(Opcode { service: Service::Ud, operation }, to.qp, self.psn);
        bth.solicited = wqe.solicited;
        let source = Source::Request { position: self.queue.head(), offset: 0, packets: 1 };
        Some(Tx { bth, ext, len: wqe.len as usize, source })
    }

    /// Returns the path of the next datagram.
    #[must_use]
    pub fn route(&self) -> Option<&Route> {
        Some(&self.destination()?.route)
    }

    /// Returns the length of the frame of the next datagram, `tx`, in bytes.
    #[must_use]
    pub fn frame_len(&self, tx: &Tx) -> usize {
        self.route().map_or(0, |route| route.headers.frame_len(&tx.ext, tx.len))
    }

    /// Writes the frame of the next datagram, as [`ReliableQp::emit`](super::ReliableQp::emit) does.
    pub fn emit(&self, tx: &Tx, id: u16, out: &mut [u8], memory: &dyn Memory) -> Option<(usize, bool)> {
        let path = Template::new(self.route()?.headers);
        tx.emit(&path, id, out, |to| self.queue.gather(self.queue.head(), 0, to, memory).is_ok())
    }

    /// Returns the bytes that precede the next datagram, `tx`, in its receive.
    #[must_use]
    pub fn origin(&self, tx: &Tx) -> Option<[u8; GRH_LEN as usize]> {
        Some(self.route()?.headers.origin(&tx.ext, tx.len))
    }

    /// Makes the packet of the next datagram, as [`ReliableQp::loop_back`](super::ReliableQp::loop_back)
    /// does.
    pub fn loop_back<'a>(&self, tx: &Tx, scratch: &'a mut [u8], memory: &dyn Memory) -> Option<Packet<'a>> {
        let payload = scratch.get_mut(..tx.len)?;
        self.queue.gather(self.queue.head(), 0, payload, memory).ok()?;
        Some(Packet { bth: tx.bth, ext: tx.ext, payload })
    }

    /// Records that the next datagram was sent.
    pub fn sent(&mut self, env: &mut Env<'_>) {
        self.psn = self.psn.add(1);
        self.end_send(Status::Success, env);
    }

    /// Fails the next datagram, whose payload could not be read from memory: it completes with an error,
    /// later ones as flushed. Receiving continues (send queue error state, specification 10.3.1.6).
    pub fn payload_failed(&mut self, env: &mut Env<'_>) {
        self.fail_send(Some(Status::LocalProtectionError), env);
    }

    /// Completes all sends, now and later: the oldest with the given status, if any, the others as flushed.
    /// Receiving continues.
    pub fn fail_send(&mut self, status: Option<Status>, env: &mut Env<'_>) {
        env.counters.qp_errors += 1;
        self.send_ended = true;
        self.flush_send(status, env);
    }

    /// Completes all work as flushed, now and later, at the owner's request.
    pub fn end(&mut self, env: &mut Env<'_>) {
        (self.send_ended, self.recv_ended) = (true, true);
        self.flush_send(None, env);
        self.flush_recv(None, env);
    }

    fn slot(&self, position: u64) -> usize {
        // The length is a power of two.
        position as usize & (self.destinations.len() - 1)
    }

    fn destination(&self) -> Option<&Destination> {
        self.destinations.get(self.slot(self.queue.head()))?.as_ref()
    }

    fn end_send(&mut self, status: Status, env: &mut Env<'_>) -> bool {
        let Some(wqe) = self.queue.front() else { return false };
        let completion =
            Completion { byte_len: wqe.len, ..Completion::new(wqe.id, self.number, status, WorkKind::Send) };
        let report = wqe.signaled || status != Status::Success;
        self.queue.pop();
        env.completions.send_ended(&completion, report);
        true
    }

    fn flush_send(&mut self, first: Option<Status>, env: &mut Env<'_>) {
        if let Some(status) = first {
            self.end_send(status, env);
        }
        while self.end_send(Status::WorkRequestFlushed, env) {}
    }

    fn flush_recv(&mut self, first: Option<Status>, env: &mut Env<'_>) {
        let mut status = first.unwrap_or(Status::WorkRequestFlushed);
        while let Some(id) = self.recv.pop() {
            env.completions.recv_ended(&Completion::new(id, self.number, status, WorkKind::Recv));
            status = Status::WorkRequestFlushed;
        }
    }
}
