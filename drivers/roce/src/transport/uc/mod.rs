//! The unreliable connected service (specification 9.8.2): SEND and WRITE, each with or without immediate
//! data, in packets that are not acknowledged.
//!
//! A message is complete for its sender when its last packet was sent. A receiver drops and counts unusable
//! packets: see [`receiver`].

mod receiver;

use super::Env;
use super::qp::{Limits, Source, State, Tx};
use super::recv_queue::RecvQueue;
use super::request::Request;
use super::resources::ahead;
use super::send_queue::SendQueue;
use crate::wire::{Headers, Net, Packet, Service, Template};
use platform::Memory;
use receiver::Receiver;
use verbs::{Completion, Psn, QpConnect, QpNum, RecvWr, SendOp, SendWr, Status, VerbsError, WrId};

/// An unreliable connected queue pair. Its calls are those of [`ReliableQp`](super::ReliableQp), without
/// timers and rounds.
pub struct UnreliableQp {
    number: QpNum,
    state: State,
    queue: SendQueue,
    receiver: Receiver,
    path: Option<Template>,
    remote_qp: QpNum,
    /// The payload of a full packet, in bytes.
    mtu: usize,
    /// The PSN of the next packet.
    next: Psn,
    /// The first PSN of the next work request to be posted.
    post: Psn,
    /// True if sends complete as flushed (send queue error state, specification 10.3.1.6, or error state).
    send_ended: bool,
}

impl UnreliableQp {
    /// Makes a queue pair, and allocates everything that it will need.
    #[must_use]
    pub fn new(number: QpNum, limits: &Limits) -> Self {
        Self {
            number,
            state: State::Init,
            queue: SendQueue::new(limits.send_depth, limits.max_sge, limits.max_inline),
            receiver: Receiver::new(number, RecvQueue::new(limits.recv_depth, limits.max_sge)),
            path: None,
            remote_qp: QpNum::new(0),
            mtu: 256,
            next: Psn::new(0),
            post: Psn::new(0),
            send_ended: false,
        }
    }

    /// Returns the queue pair's number.
    #[must_use]
    pub const fn number(&self) -> QpNum {
        self.number
    }

    /// Returns the state.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Returns true if sends complete as flushed: after an error of one, or in the error state.
    #[must_use]
    pub const fn has_send_ended(&self) -> bool {
        self.send_ended
    }

    /// Returns true if `source` is the peer's.
    #[must_use]
    pub fn is_peer(&self, source: &Net) -> bool {
        self.path.as_ref().is_some_and(|path| path.headers().net.leads_to_source_of(source))
    }

    /// Changes the state to RTR (specification 10.3.1.4), in which packets are received. Only the parts of
    /// `connect` about receiving are used.
    pub fn ready_to_receive(&mut self, connect: &QpConnect, path: Option<Headers>) -> Result<(), VerbsError> {
        if self.state != State::Init {
            return Err(VerbsError::InvalidState);
        }
        self.mtu = connect.mtu.bytes();
        self.receiver.connect(connect);
        self.remote_qp = connect.remote_qp;
        self.path = path.map(Template::new);
        self.state = State::ReadyToReceive;
        Ok(())
    }

    /// Changes the state to RTS, in which packets are sent.
    pub fn ready_to_send(&mut self, connect: &QpConnect) -> Result<(), VerbsError> {
        if self.state != State::ReadyToReceive {
            return Err(VerbsError::InvalidState);
        }
        (self.next, self.post) = (connect.send_psn, connect.send_psn);
        self.state = State::ReadyToSend;
        Ok(())
    }

    /// Returns the number of send work requests that can be posted now.
    #[must_use]
    pub const fn send_room(&self) -> u32 {
        self.queue.room()
    }

    /// Returns the PSN of the next packet.
    #[must_use]
    pub const fn send_psn(&self) -> Psn {
        self.next
    }

    /// Returns the PSN of the packet that is expected next.
    #[must_use]
    pub const fn recv_psn(&self) -> Psn {
        self.receiver.expected_psn()
    }

    /// Returns the number of posted receives.
    #[must_use]
    pub const fn receives_posted(&self) -> u32 {
        self.receiver.receives_posted()
    }

    /// Removes the oldest receive, unless a message has begun to use it.
    pub fn take_back_receive(&mut self) -> Option<WrId> {
        self.receiver.take_back()
    }

    /// Queues send work. Only reliable services have READs, atomics and SENDs that invalidate. On a queue
    /// pair in error the work completes as flushed at once.
    pub fn post_send(&mut self, work: &SendWr<'_>, env: &mut Env<'_>) -> Result<(), VerbsError> {
        if matches!(self.state, State::Init | State::ReadyToReceive) {
            return Err(VerbsError::InvalidState);
        }
        if !matches!(work.op, SendOp::Send { .. } | SendOp::Write { .. }) {
            return Err(VerbsError::Unsupported);
        }
        let packets = self.queue.push(work, self.post, self.mtu, env.memory)?;
        self.post = self.post.add(packets);
        if self.send_ended {
            self.flush_send(None, env);
        }
        Ok(())
    }

    /// Queues receive work. On a queue pair in error it completes as flushed at once.
    pub fn post_recv(&mut self, work: &RecvWr<'_>, env: &mut Env<'_>) -> Result<(), VerbsError> {
        self.receiver.post(work, env.memory)?;
        if self.state == State::Error {
            self.receiver.flush(None, env);
        }
        Ok(())
    }

    /// Handles a packet that the peer sent.
    pub fn receive(&mut self, packet: &Packet<'_>, env: &mut Env<'_>) {
        if packet.bth.opcode.service != Service::Uc {
            env.counters.rx_wrong_service += 1;
        } else if !matches!(self.state, State::ReadyToReceive | State::ReadyToSend) {
            env.counters.rx_wrong_state += 1;
        } else if let Err(status) = self.receiver.on_packet(packet, env) {
            self.fail(None, Some(status), env);
        }
    }

    /// Returns true if [`next_tx`](Self::next_tx) returns a packet.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.state == State::ReadyToSend && self.queue.front().is_some()
    }

    /// Returns the next packet.
    #[must_use]
    pub fn next_tx(&self) -> Option<Tx> {
        if self.state != State::ReadyToSend {
            return None;
        }
        let wqe = self.queue.front()?;
        let request = Request {
            wqe,
            position: self.queue.head(),
            psn: self.next,
            done: ahead(self.next, wqe.first),
            packets: 1,
            ack_request: false,
            mtu: self.mtu,
            remote_qp: self.remote_qp,
        };
        let mut tx = request.tx();
        tx.bth.opcode.service = Service::Uc;
        Some(tx)
    }

    /// Returns the length of the frame of `tx`, in bytes.
    #[must_use]
    pub fn frame_len(&self, tx: &Tx) -> usize {
        self.path.as_ref().map_or(0, |path| path.frame_len(&tx.bth, &tx.ext, tx.len))
    }

    /// Writes the frame of `tx`, as [`ReliableQp::emit`](super::ReliableQp::emit) does.
    pub fn emit(&self, tx: &Tx, id: u16, out: &mut [u8], memory: &dyn Memory) -> Option<(usize, bool)> {
        tx.emit(self.path.as_ref()?, id, out, |to| self.fill(tx, to, memory))
    }

    fn fill(&self, tx: &Tx, to: &mut [u8], memory: &dyn Memory) -> bool {
        match tx.source {
            Source::Request { position, offset, .. } => {
                self.queue.gather(position, offset, to, memory).is_ok()
            }
            _ => to.is_empty(),
        }
    }

    /// Records that `tx`, which [`next_tx`](Self::next_tx) returned, was sent.
    pub fn sent(&mut self, _tx: &Tx, env: &mut Env<'_>) {
        self.next = self.next.add(1);
        let ended = self.queue.front().is_some_and(|wqe| ahead(self.next, wqe.first) >= wqe.packets);
        if ended {
            self.end_send(Status::Success, env);
        }
    }

    /// Fails all sends, because the payload of `tx`, which [`next_tx`](Self::next_tx) returned, could not be
    /// read from memory.
    pub fn payload_failed(&mut self, _tx: &Tx, env: &mut Env<'_>) {
        self.fail_send(Some(Status::LocalProtectionError), env);
    }

    /// Completes all sends, now and later: the oldest with the given status, if any, the others as flushed.
    /// Receiving continues.
    pub fn fail_send(&mut self, status: Option<Status>, env: &mut Env<'_>) {
        env.counters.qp_errors += 1;
        self.send_ended = true;
        self.flush_send(status, env);
    }

    /// Resumes sending after an error of the send queue (transition from SQE to RTS).
    pub fn resume_sending(&mut self) {
        if self.state == State::ReadyToSend {
            self.send_ended = false;
            self.next = self.post;
        }
    }

    /// Changes to the error state: completes all work, the oldest send and receive with the given status, if
    /// any.
    pub fn fail(&mut self, send: Option<Status>, recv: Option<Status>, env: &mut Env<'_>) {
        if self.state != State::Error {
            env.counters.qp_errors += 1;
        }
        self.end(send, recv, env);
    }

    /// Completes all work as [`fail`](Self::fail) does, but at the owner's request, so that no error is
    /// counted.
    pub fn end(&mut self, send: Option<Status>, recv: Option<Status>, env: &mut Env<'_>) {
        self.state = State::Error;
        self.send_ended = true;
        self.flush_send(send, env);
        self.receiver.flush(recv, env);
    }

    fn flush_send(&mut self, first: Option<Status>, env: &mut Env<'_>) {
        if let Some(status) = first {
            self.end_send(status, env);
        }
        while self.end_send(Status::WorkRequestFlushed, env) {}
    }

    fn end_send(&mut self, status: Status, env: &mut Env<'_>) -> bool {
        let Some(wqe) = self.queue.front() else { return false };
        let completion =
            Completion { byte_len: wqe.len, ..Completion::new(wqe.id, self.number, status, wqe.op.kind()) };
        let report = wqe.signaled || status != Status::Success;
        self.queue.pop();
        env.completions.send_ended(&completion, report);
        true
    }
}
