//! The transport of a queue pair: one of the state machines of `drivers/roce`.

use platform::{Instant, Memory};
use roce::transport::{DatagramQp, Env, ReliableQp, RemoteAccess, State, Tx, UnreliableQp};
use roce::wire::{Ecn, Headers, Net, Packet, Service};
use verbs::{QpConnect, RecvWr, SendWr, Status, VerbsError, WrId};

/// The transport of a queue pair.
pub(crate) enum Transport {
    /// A connection to one peer.
    Connected(Connection),
    /// Datagrams. For a special queue pair only the receive side; the guest builds its sends.
    Datagram(Box<DatagramQp>),
    /// Ethernet frames that the guest builds and parses.
    Raw,
}

/// The queues that have failed and flush their work requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// Neither queue has failed.
    Nothing,
    /// The send queue: the queue pair is in the send queue error state.
    Sends,
    /// Both queues have failed: the queue pair is in the error state.
    All,
}

impl Transport {
    /// Returns the queues that have failed.
    #[must_use]
    pub(crate) fn ended(&self) -> Ended {
        let (sends, all) = match self {
            Self::Connected(Connection::Reliable(qp)) => (false, qp.state() == State::Error),
            Self::Connected(Connection::Unreliable(qp)) => (qp.has_send_ended(), qp.state() == State::Error),
            Self::Datagram(qp) => qp.has_ended(),
            Self::Raw => (false, false),
        };
        match (sends, all) {
            (_, true) => Ended::All,
            (true, false) => Ended::Sends,
            (false, false) => Ended::Nothing,
        }
    }

    /// Returns whether the transport handles packets of a service.
    #[must_use]
    pub(crate) fn takes(&self, service: Service) -> bool {
        match self {
            Self::Connected(Connection::Reliable(qp)) => service == qp.service() || service == Service::Cnp,
            Self::Connected(Connection::Unreliable(_)) => matches!(service, Service::Uc),
            Self::Datagram(_) => matches!(service, Service::Ud),
            Self::Raw => false,
        }
    }

    /// Returns the number of posted receives.
    #[must_use]
    pub(crate) const fn receives_posted(&self) -> u32 {
        match self {
            Self::Connected(Connection::Reliable(qp)) => qp.receives_posted(),
            Self::Connected(Connection::Unreliable(qp)) => qp.receives_posted(),
            Self::Datagram(qp) => qp.receives_posted(),
            Self::Raw => 0,
        }
    }

    /// Takes back the oldest receive, if no message has started to use it.
    pub(crate) fn take_back_receive(&mut self) -> Option<WrId> {
        match self {
            Self::Connected(Connection::Reliable(qp)) => qp.take_back_receive(),
            Self::Connected(Connection::Unreliable(qp)) => qp.take_back_receive(),
            Self::Datagram(qp) => qp.take_back_receive(),
            Self::Raw => None,
        }
    }

    /// Posts a receive.
    pub(crate) fn post_recv(&mut self, work: &RecvWr<'_>, env: &mut Env<'_>) -> Result<(), VerbsError> {
        match self {
            Self::Connected(Connection::Reliable(qp)) => qp.post_recv(work, env),
            Self::Connected(Connection::Unreliable(qp)) => qp.post_recv(work, env),
            Self::Datagram(qp) => qp.post_recv(work, env),
            Self::Raw => Err(VerbsError::Unsupported),
        }
    }

    /// Puts the queue pair into the error state, which flushes all work.
    pub(crate) fn fail(&mut self, env: &mut Env<'_>) {
        match self {
            Self::Connected(Connection::Reliable(qp)) => qp.fail(None, None, env),
            Self::Connected(Connection::Unreliable(qp)) => qp.fail(None, None, env),
            Self::Datagram(qp) => qp.end(env),
            Self::Raw => {}
        }
    }

    /// Resumes sending after a send queue error.
    pub(crate) fn resume_sending(&mut self) {
        match self {
            Self::Connected(Connection::Unreliable(qp)) => qp.resume_sending(),
            Self::Datagram(qp) => qp.resume_sending(),
            Self::Connected(Connection::Reliable(_)) | Self::Raw => {}
        }
    }

    /// Returns the time at which [`on_timer`](Self::on_timer) is due.
    #[must_use]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Connected(Connection::Reliable(qp)) => qp.deadline(),
            _ => None,
        }
    }

    /// Handles expired timers.
    pub(crate) fn on_timer(&mut self, env: &mut Env<'_>) {
        if let Self::Connected(Connection::Reliable(qp)) = self {
            qp.on_timer(env);
        }
    }
}

/// A connection of either kind, with the methods of [`ReliableQp`].
pub(crate) enum Connection {
    /// RC or XRC.
    Reliable(Box<ReliableQp>),
    /// UC.
    Unreliable(Box<UnreliableQp>),
}

#[allow(missing_docs, reason = "as of `ReliableQp`")]
impl Connection {
    /// Returns the next PSN to send, the last acknowledged PSN, and the next expected PSN.
    #[must_use]
    pub(crate) const fn psns(&self) -> (u32, u32, u32) {
        const BEFORE: u32 = 0xff_ffff;
        match self {
            Self::Reliable(qp) => {
                (qp.send_psn().get(), qp.unacknowledged_psn().add(BEFORE).get(), qp.recv_psn().get())
            }
            Self::Unreliable(qp) => {
                (qp.send_psn().get(), qp.send_psn().add(BEFORE).get(), qp.recv_psn().get())
            }
        }
    }

    pub(crate) fn set_yielding(&mut self, yields: bool) {
        // An unreliable connection has no window.
        if let Self::Reliable(qp) = self {
            qp.set_yielding(yields);
        }
    }

    #[must_use]
    pub(crate) fn is_peer(&self, source: &Net) -> bool {
        match self {
            Self::Reliable(qp) => qp.is_peer(source),
            Self::Unreliable(qp) => qp.is_peer(source),
        }
    }

    pub(crate) fn ready_to_receive(&mut self, connect: &QpConnect, path: Headers) -> Result<(), VerbsError> {
        match self {
            Self::Reliable(qp) => qp.ready_to_receive(connect, Some(path)),
            Self::Unreliable(qp) => qp.ready_to_receive(connect, Some(path)),
        }
    }

    pub(crate) fn ready_to_send(&mut self, connect: &QpConnect) -> Result<(), VerbsError> {
        match self {
            Self::Reliable(qp) => qp.ready_to_send(connect),
            Self::Unreliable(qp) => qp.ready_to_send(connect),
        }
    }

    #[must_use]
    pub(crate) const fn send_room(&self) -> u32 {
        match self {
            Self::Reliable(qp) => qp.send_room(),
            Self::Unreliable(qp) => qp.send_room(),
        }
    }

    /// Posts a send. `srq` is used only by an extended connection.
    pub(crate) fn post_send(
        &mut self,
        work: &SendWr<'_>,
        srq: u32,
        env: &mut Env<'_>,
    ) -> Result<(), VerbsError> {
        match self {
            Self::Reliable(qp) => qp.post_send_to(work, srq, env),
            Self::Unreliable(qp) => qp.post_send(work, env),
        }
    }

    /// Ends the posted work because a later work request is invalid: a reliable queue pair goes to the error
    /// state, an unreliable one to the send queue error state (specification 10.3.1).
    pub(crate) fn fail_send(&mut self, status: Option<Status>, env: &mut Env<'_>) {
        match self {
            Self::Reliable(qp) => qp.fail(status, None, env),
            Self::Unreliable(qp) => qp.fail_send(status, env),
        }
    }

    pub(crate) fn receive(&mut self, packet: &Packet<'_>, ecn: Ecn, round: u32, env: &mut Env<'_>) {
        match self {
            Self::Reliable(qp) => qp.receive(packet, ecn, round, env),
            Self::Unreliable(qp) => qp.receive(packet, env),
        }
    }

    #[must_use]
    pub(crate) fn next_tx(&self, round: u32) -> Option<Tx> {
        match self {
            Self::Reliable(qp) => qp.next_tx(round),
            Self::Unreliable(qp) => qp.next_tx(),
        }
    }

    #[must_use]
    pub(crate) fn frame_len(&self, tx: &Tx) -> usize {
        match self {
            Self::Reliable(qp) => qp.frame_len(tx),
            Self::Unreliable(qp) => qp.frame_len(tx),
        }
    }

    pub(crate) fn emit(
        &self,
        tx: &Tx,
        out: &mut [u8],
        memory: &dyn Memory,
        remote: &dyn RemoteAccess,
    ) -> Option<(usize, bool)> {
        match self {
            Self::Reliable(qp) => qp.emit(tx, 0, out, memory, remote),
            Self::Unreliable(qp) => qp.emit(tx, 0, out, memory),
        }
    }

    pub(crate) fn sent(&mut self, tx: &Tx, env: &mut Env<'_>) {
        match self {
            Self::Reliable(qp) => qp.sent(tx, env),
            Self::Unreliable(qp) => qp.sent(tx, env),
        }
    }

    pub(crate) fn spoiled(&mut self, tx: &Tx, env: &mut Env<'_>) {
        match self {
            Self::Reliable(qp) => qp.payload_failed(tx, env),
            Self::Unreliable(qp) => qp.payload_failed(tx, env),
        }
    }
}
