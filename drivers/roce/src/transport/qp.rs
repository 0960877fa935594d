//! A reliable connected queue pair: requester and responder over one path.

use super::access::RemoteAccess;
use super::notify::Notifier;
use super::recv_queue::RecvQueue;
use super::requester::Requester;
use super::responder::Responder;
use super::send_queue::SendQueue;
use super::{Env, MAX_RD_ATOMIC};
use crate::wire::{Bth, Ecn, Ext, Headers, Net, Packet, Service, Template, XrcEth};
use platform::{Instant, IoAddr, Memory};
use verbs::{Psn, QpConnect, QpNum, RecvWr, RemoteKey, SendWr, Status, VerbsError, WrId};

/// The capacities of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of send work requests outstanding.
    pub send_depth: u32,
    /// The maximum number of receive work requests outstanding.
    pub recv_depth: u32,
    /// The maximum number of elements in a scatter or gather list, at most 255.
    pub max_sge: u32,
    /// The maximum length of an inline payload, in bytes.
    pub max_inline: u32,
    /// The number of READs and atomics that it holds for its peer, at most [`MAX_RD_ATOMIC`].
    pub max_rd_atomic: u8,
    /// The maximum number of packets in flight: the capacity of a peer's receive ring.
    pub max_window: u32,
}

/// The state of a queue pair (specification 10.3.1), without those that a software RNIC passes through at
/// once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The queue pair is not connected.
    Init,
    /// Connected, responds to its peer, but does not send its own work yet.
    ReadyToReceive,
    /// Connected in both directions.
    ReadyToSend,
    /// All work completes as flushed.
    Error,
}

/// The source of a packet's payload, and thereby the half of the queue pair that sends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// A request: bytes from `offset` of a work request, which consumes `packets` PSNs.
    Request { position: u64, offset: u32, packets: u32 },
    /// READ data.
    ReadData { key: RemoteKey, addr: IoAddr, srq: Option<u32> },
    /// The result of an atomic.
    AtomicResult,
    /// An acknowledgement or a NAK.
    Acknowledge,
    /// A congestion notification.
    Notification,
}

/// A packet that may be sent.
#[derive(Clone, Copy, Debug)]
pub struct Tx {
    pub(super) bth: Bth,
    pub(super) ext: Ext,
    pub(super) len: usize,
    pub(super) source: Source,
}

impl Tx {
    /// Returns the length of the payload, in bytes.
    #[must_use]
    pub const fn payload_len(&self) -> usize {
        self.len
    }

    /// Writes the frame with the headers of `path` and IPv4 identification `id` into the front of `out`;
    /// `fill` writes its payload. Returns the length, and true if `fill` succeeded. If it failed, the ICRC is
    /// wrong on purpose. Returns `None` if `out` is too short.
    pub(super) fn emit(
        &self,
        path: &Template,
        id: u16,
        out: &mut [u8],
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Option<(usize, bool)> {
        let mut good = true;
        let len = path.emit(id, &self.bth, &self.ext, self.len, out, |to| good = fill(to))?;
        if !good && let Some(last) = out.get_mut(len - 1) {
            *last = !*last;
        }
        Some((len, good))
    }
}

/// A reliable connected queue pair.
pub struct ReliableQp {
    number: QpNum,
    /// The queue pair's service: [`Service::Rc`] or [`Service::Xrc`].
    service: Service,
    state: State,
    requester: Requester,
    responder: Responder,
    notifier: Notifier,
    path: Option<Template>,
    remote_qp: QpNum,
    /// The half that sends next if both could, so that neither starves the other.
    responder_next: bool,
}

impl ReliableQp {
    /// Makes a queue pair, and allocates everything that it will need.
    #[must_use]
    pub fn new(number: QpNum, limits: &Limits) -> Self {
        let send = SendQueue::new(limits.send_depth, limits.max_sge, limits.max_inline);
        let recv = RecvQueue::new(limits.recv_depth, limits.max_sge);
        Self {
            number,
            service: Service::Rc,
            state: State::Init,
            requester: Requester::new(number, send, MAX_RD_ATOMIC, limits.max_window),
            responder: Responder::new(number, recv, limits.max_rd_atomic.min(MAX_RD_ATOMIC)),
            notifier: Notifier::new(),
            path: None,
            remote_qp: QpNum::new(0),
            responder_next: true,
        }
    }

    /// Makes a queue pair, as [`new`](Self::new) does, of the extended reliable connected service. Work is
    /// posted by [`post_send_to`](Self::post_send_to), and [`RemoteAccess::enter`] checks the queues that the
    /// peer names.
    #[must_use]
    pub fn new_extended(number: QpNum, limits: &Limits) -> Self {
        Self { service: Service::Xrc, ..Self::new(number, limits) }
    }

    /// Returns the queue pair's number.
    #[must_use]
    pub const fn number(&self) -> QpNum {
        self.number
    }

    /// Returns the service: [`Service::Rc`] or [`Service::Xrc`].
    #[must_use]
    pub const fn service(&self) -> Service {
        self.service
    }

    /// Returns the state.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Returns the number of the peer's queue pair.
    #[must_use]
    pub const fn remote_qp(&self) -> QpNum {
        self.remote_qp
    }

    /// Returns the headers of sent frames; `None` while not connected, or if the peer is in the same RNIC.
    #[must_use]
    pub const fn path(&self) -> Option<&Headers> {
        match &self.path {
            Some(path) => Some(path.headers()),
            None => None,
        }
    }

    /// Returns true if `source` is the peer's.
    #[must_use]
    pub fn is_peer(&self, source: &Net) -> bool {
        self.path.as_ref().is_some_and(|path| path.headers().net.leads_to_source_of(source))
    }

    /// Connects the queue pair over `path`, or within the RNIC if that is `None`, in both directions at once.
    pub fn connect(&mut self, connect: &QpConnect, path: Option<Headers>) -> Result<(), VerbsError> {
        if connect.max_rd_atomic > MAX_RD_ATOMIC {
            return Err(VerbsError::InvalidArgument);
        }
        self.ready_to_receive(connect, path)?;
        self.ready_to_send(connect)
    }

    /// Changes the state to RTR (specification 10.3.1.4), in which it responds to its peer. Only the parts of
    /// `connect` about responding are used.
    pub fn ready_to_receive(&mut self, connect: &QpConnect, path: Option<Headers>) -> Result<(), VerbsError> {
        if self.state != State::Init {
            return Err(VerbsError::InvalidState);
        }
        self.responder.connect(connect);
        self.remote_qp = connect.remote_qp;
        self.path = path.map(Template::new);
        self.state = State::ReadyToReceive;
        Ok(())
    }

    /// Changes the state to RTS (ready to send).
    pub fn ready_to_send(&mut self, connect: &QpConnect) -> Result<(), VerbsError> {
        if self.state != State::ReadyToReceive {
            return Err(VerbsError::InvalidState);
        }
        if connect.max_rd_atomic > MAX_RD_ATOMIC {
            return Err(VerbsError::InvalidArgument);
        }
        self.requester.connect(connect);
        self.state = State::ReadyToSend;
        Ok(())
    }

    /// Returns the number of send work requests that can be posted now.
    #[must_use]
    pub const fn send_room(&self) -> u32 {
        self.requester.queue().room()
    }

    /// Returns the PSN of the next request.
    #[must_use]
    pub const fn send_psn(&self) -> Psn {
        self.requester.next_psn()
    }

    /// Returns the PSN of the oldest request that is not acknowledged.
    #[must_use]
    pub const fn unacknowledged_psn(&self) -> Psn {
        self.requester.unacknowledged_psn()
    }

    /// Returns the PSN of the request that is expected next.
    #[must_use]
    pub const fn recv_psn(&self) -> Psn {
        self.responder.expected_psn()
    }

    /// Returns the number of posted receives.
    #[must_use]
    pub const fn receives_posted(&self) -> u32 {
        self.responder.receives_posted()
    }

    /// Removes the oldest receive, unless a message has begun to use it.
    pub fn take_back_receive(&mut self) -> Option<WrId> {
        self.responder.take_back()
    }

    /// Queues send work. On a queue pair in error it completes as flushed at once.
    pub fn post_send(&mut self, work: &SendWr<'_>, env: &mut Env<'_>) -> Result<(), VerbsError> {
        self.post_send_to(work, 0, env)
    }

    /// Queues send work, as [`post_send`](Self::post_send) does, for a shared receive queue of the peer.
    /// Without an extended connection, `srq` is ignored.
    pub fn post_send_to(&mut self, work: &SendWr<'_>, srq: u32, env: &mut Env<'_>) -> Result<(), VerbsError> {
        if matches!(self.state, State::Init | State::ReadyToReceive) {
            return Err(VerbsError::InvalidState);
        }
        self.requester.post(work, srq, env.memory)?;
        if self.state == State::Error {
            self.requester.flush(None, env);
        }
        Ok(())
    }

    /// Queues receive work. On a queue pair in error it completes as flushed at once.
    pub fn post_recv(&mut self, work: &RecvWr<'_>, env: &mut Env<'_>) -> Result<(), VerbsError> {
        self.responder.post(work, env.memory)?;
        if self.state == State::Error {
            self.responder.flush(None, env);
        }
        Ok(())
    }

    /// Handles a packet from the peer that arrived with mark `ecn`. Acknowledgements for it wait for a
    /// `round` other than this.
    pub fn receive(&mut self, packet: &Packet<'_>, ecn: Ecn, round: u32, env: &mut Env<'_>) {
        let marked = ecn == Ecn::CongestionExperienced;
        env.counters.rx_ecn_marked += u64::from(marked);
        if packet.bth.opcode.service == Service::Cnp {
            env.counters.rx_cnps += 1;
            self.requester.on_congestion();
            return;
        }
        let ready = matches!(self.state, State::ReadyToReceive | State::ReadyToSend);
        if marked && ready {
            self.notifier.on_marked(env.now);
        }
        if packet.bth.opcode.operation.is_response() {
            if self.state != State::ReadyToSend {
                env.counters.rx_wrong_state += 1;
            } else if let Err(status) = self.requester.on_response(packet, ecn, env) {
                self.fail(Some(status), None, env);
            }
        } else if !ready && !self.responder.has_refused() {
            env.counters.rx_wrong_state += 1;
        } else if let Err(status) = self.responder.on_request(packet, round, env) {
            // In error the responder only repeats a refusal that the peer did not receive.
            self.fail(None, status, env);
        }
    }

    /// Returns the time at which [`on_timer`](Self::on_timer) must be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        if self.state == State::ReadyToSend { self.requester.deadline() } else { None }
    }

    /// Handles the timers that have expired at `env.now`.
    pub fn on_timer(&mut self, env: &mut Env<'_>) {
        if self.state == State::ReadyToSend
            && let Err(status) = self.requester.on_timer(env)
        {
            self.fail(Some(status), None, env);
        }
    }

    /// Keeps few requests in flight from now on, if `yields`, because a queue pair of a higher service level
    /// is in use ([`Levels::yields`](super::Levels::yields)). Acknowledgements and responses are not
    /// affected.
    pub fn set_yielding(&mut self, yields: bool) {
        self.requester.set_yielding(yields);
    }

    /// Returns true if [`next_tx`](Self::next_tx) returns a packet, in this round or the next.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.responder.has_work()
            || self.notifier.is_due()
            || self.state == State::ReadyToSend && self.requester.has_work()
    }

    /// Returns the next packet that may be sent in `round`.
    ///
    /// A congestion notification comes first. Data for the peer and requests alternate; an acknowledgement
    /// comes after both.
    #[must_use]
    pub fn next_tx(&self, round: u32) -> Option<Tx> {
        if self.notifier.is_due() {
            return self.notifier.next_tx(self.remote_qp);
        }
        if self.service == Service::Xrc {
            return self.next_in_turn(round).map(|tx| self.extended(tx));
        }
        self.next_in_turn(round)
    }

    /// Returns the next response or request, as of a reliable connection.
    #[inline]
    fn next_in_turn(&self, round: u32) -> Option<Tx> {
        let data_first = self.responder_next && self.responder.is_answering();
        if !data_first
            && self.state == State::ReadyToSend
            && let Some(request) = self.requester.next_request()
        {
            return Some(request.tx());
        }
        self.responder.next_tx(round)
    }

    /// Turns a packet of a reliable connection into one of an extended reliable connection (XRC).
    fn extended(&self, mut tx: Tx) -> Tx {
        tx.bth.opcode.service = Service::Xrc;
        if let Source::Request { position, .. } = tx.source {
            let srq = self.requester.queue().get(position).map_or(0, |wqe| wqe.srq);
            tx.bth.xrc = Some(XrcEth::new(srq));
        }
        tx
    }

    /// Writes the frame of `tx` into the front of `out` with IPv4 identification `id`. Returns the length,
    /// and false if memory could not be read; the ICRC is then wrong on purpose, and the caller must call
    /// [`payload_failed`](Self::payload_failed). Returns `None` if the queue pair is not connected over a
    /// path, or `out` is too short.
    pub fn emit(
        &self,
        tx: &Tx,
        id: u16,
        out: &mut [u8],
        memory: &dyn Memory,
        remote: &dyn RemoteAccess,
    ) -> Option<(usize, bool)> {
        tx.emit(self.path.as_ref()?, id, out, |to| self.fill(tx, to, memory, remote))
    }

    /// Makes the packet of `tx` with its payload in `scratch`, for a queue pair of the same RNIC. Returns
    /// `None` if memory could not be read or `scratch` is too short.
    pub fn loop_back<'a>(
        &self,
        tx: &Tx,
        scratch: &'a mut [u8],
        memory: &dyn Memory,
        remote: &dyn RemoteAccess,
    ) -> Option<Packet<'a>> {
        let payload = scratch.get_mut(..tx.len)?;
        self.fill(tx, payload, memory, remote).then_some(Packet { bth: tx.bth, ext: tx.ext, payload })
    }

    fn fill(&self, tx: &Tx, payload: &mut [u8], memory: &dyn Memory, remote: &dyn RemoteAccess) -> bool {
        if payload.is_empty() {
            return true;
        }
        match tx.source {
            Source::Request { position, offset, .. } => {
                self.requester.queue().gather(position, offset, payload, memory).is_ok()
            }
            Source::ReadData { key, addr, srq } => {
                srq.is_none_or(|srq| remote.enter(srq).is_ok()) && remote.read(key, addr, payload).is_ok()
            }
            Source::AtomicResult | Source::Acknowledge | Source::Notification => true,
        }
    }

    /// Returns the length of the frame of `tx`, in bytes.
    #[must_use]
    pub fn frame_len(&self, tx: &Tx) -> usize {
        self.path.as_ref().map_or(0, |path| path.frame_len(&tx.bth, &tx.ext, tx.len))
    }

    /// Records that `tx`, which [`next_tx`](Self::next_tx) returned, was sent.
    pub fn sent(&mut self, tx: &Tx, env: &mut Env<'_>) {
        match tx.source {
            Source::Request { packets, .. } => {
                self.requester.on_sent(tx, packets, env);
                self.responder_next = true;
            }
            Source::Notification => {
                self.notifier.clear();
                env.counters.tx_cnps += 1;
            }
            Source::ReadData { .. } | Source::AtomicResult | Source::Acknowledge => {
                self.responder.on_sent(tx);
                self.responder_next = false;
            }
        }
    }

    /// Records that `tx`, which [`next_tx`](Self::next_tx) returned, was sent with a wrong ICRC or not at
    /// all, because its payload could not be read. The queue pair fails: own work with a local error, a READ
    /// of the peer with a refusal.
    pub fn payload_failed(&mut self, tx: &Tx, env: &mut Env<'_>) {
        let send = match tx.source {
            Source::Request { .. } => Some(Status::LocalProtectionError),
            Source::ReadData { .. } => {
                self.responder.refuse_answer(env);
                None
            }
            Source::AtomicResult | Source::Acknowledge | Source::Notification => None,
        };
        self.fail(send, None, env);
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
        self.requester.flush(send, env);
        self.responder.flush(recv, env);
        self.responder.discard_responses();
        self.notifier.clear();
    }
}
