//! A queue pair of either service, as the engine uses it.

use platform::{Instant, Memory};
use roce::transport::{DatagramQp, Env, ReliableQp, RemoteAccess, Tx};
use roce::wire::Packet;
use verbs::{GRH_LEN, QpNum, RecvWr, VerbsError};

#[allow(clippy::large_enum_variant, reason = "each slot is boxed")]
pub(crate) enum QueuePair {
    Reliable(ReliableQp),
    Datagram(DatagramQp),
}

impl QueuePair {
    pub(crate) const fn number(&self) -> QpNum {
        match self {
            Self::Reliable(qp) => qp.number(),
            Self::Datagram(qp) => qp.number(),
        }
    }

    pub(crate) fn post_recv(&mut self, work: &RecvWr<'_>, env: &mut Env<'_>) -> Result<(), VerbsError> {
        match self {
            Self::Reliable(qp) => qp.post_recv(work, env),
            Self::Datagram(qp) => qp.post_recv(work, env),
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        match self {
            Self::Reliable(qp) => qp.has_work(),
            Self::Datagram(qp) => qp.has_work(),
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Reliable(qp) => qp.deadline(),
            Self::Datagram(_) => None,
        }
    }

    pub(crate) fn on_timer(&mut self, env: &mut Env<'_>) {
        if let Self::Reliable(qp) = self {
            qp.on_timer(env);
        }
    }

    /// Keeps few requests in flight, if `yields` and the service has a window.
    pub(crate) fn set_yielding(&mut self, yields: bool) {
        if let Self::Reliable(qp) = self {
            qp.set_yielding(yields);
        }
    }

    pub(crate) fn next_tx(&self, round: u32) -> Option<Tx> {
        match self {
            Self::Reliable(qp) => qp.next_tx(round),
            Self::Datagram(qp) => qp.next_tx(),
        }
    }

    /// Returns true if the next packet is for a queue pair of this RNIC.
    pub(crate) fn sends_within(&self) -> bool {
        match self {
            Self::Reliable(qp) => qp.path().is_none(),
            Self::Datagram(qp) => qp.route().is_some_and(|route| route.within),
        }
    }

    pub(crate) fn frame_len(&self, tx: &Tx) -> usize {
        match self {
            Self::Reliable(qp) => qp.frame_len(tx),
            Self::Datagram(qp) => qp.frame_len(tx),
        }
    }

    pub(crate) fn emit(
        &self,
        tx: &Tx,
        id: u16,
        out: &mut [u8],
        memory: &dyn Memory,
        remote: &dyn RemoteAccess,
    ) -> Option<(usize, bool)> {
        match self {
            Self::Reliable(qp) => qp.emit(tx, id, out, memory, remote),
            Self::Datagram(qp) => qp.emit(tx, id, out, memory),
        }
    }

    pub(crate) fn loop_back<'a>(
        &self,
        tx: &Tx,
        scratch: &'a mut [u8],
        memory: &dyn Memory,
        remote: &dyn RemoteAccess,
    ) -> Option<Packet<'a>> {
        match self {
            Self::Reliable(qp) => qp.loop_back(tx, scratch, memory, remote),
            Self::Datagram(qp) => qp.loop_back(tx, scratch, memory),
        }
    }

    /// Returns the bytes that precede the next packet, `tx`, in a receive, if it is a datagram.
    pub(crate) fn origin(&self, tx: &Tx) -> Option<[u8; GRH_LEN as usize]> {
        match self {
            Self::Reliable(_) => None,
            Self::Datagram(qp) => qp.origin(tx),
        }
    }

    /// Records that `tx` was sent. With `good` false, its payload could not be read.
    pub(crate) fn sent(&mut self, tx: &Tx, good: bool, env: &mut Env<'_>) {
        match (self, good) {
            (Self::Reliable(qp), true) => qp.sent(tx, env),
            (Self::Reliable(qp), false) => qp.payload_failed(tx, env),
            (Self::Datagram(qp), true) => qp.sent(env),
            (Self::Datagram(qp), false) => qp.payload_failed(env),
        }
    }

    /// Completes all work as flushed.
    pub(crate) fn end(&mut self, env: &mut Env<'_>) {
        match self {
            Self::Reliable(qp) => qp.end(None, None, env),
            Self::Datagram(qp) => qp.end(env),
        }
    }
}
