//! The nodes' ends of their control connections.

use super::SimManager;
use lite::testing::Device;
use manager::core::ConnId;
use platform::{ControlLink, Instant, LinkDown};
use proto::{ToManager, ToNode};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

/// One end of a connection to the manager: that of a node or of a client.
#[derive(Clone)]
pub struct Socket {
    pub(super) manager: Arc<SimManager>,
    pub(super) conn: ConnId,
}

impl Socket {
    /// Sends a message. Returns false if the connection has ended.
    pub fn send(&self, message: &[u8]) -> bool {
        self.manager.sends(self.conn, Some(message))
    }

    /// Asks whether the connection still exists, as a keepalive of TCP does. A machine that does not know it
    /// replies with a reset.
    pub fn probe(&self) {
        self.manager.sends(self.conn, None);
    }

    /// Returns the next message, or an error if no more will come.
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, LinkDown>> {
        self.manager.receives(self.conn, Some(cx.waker()))
    }

    /// Returns the next message as [`poll_recv`](Self::poll_recv) does, but registers no waker.
    pub fn try_recv(&self) -> Poll<Result<Vec<u8>, LinkDown>> {
        self.manager.receives(self.conn, None)
    }

    /// Returns whether a message has come, or no more will come.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.manager.has_news(self.conn)
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.manager.closes(self.conn);
    }
}

#[derive(Default)]
struct Beats {
    /// The times at which the unacknowledged heartbeats were sent, the oldest first, with their numbers.
    sent: Vec<(u64, Instant)>,
    until: Instant,
    /// The time at which the next heartbeat is due.
    due: Instant,
    next: u64,
}

/// A node's connection.
pub(crate) struct Link {
    socket: Socket,
    lease: Duration,
    beats: Mutex<Beats>,
}

/// The sender of a node's heartbeats.
pub(crate) struct Heart(pub(crate) Arc<Link>);

impl Link {
    /// Makes the connection of a node that has sent its hello at `said`, by its own clock.
    pub(crate) fn new(socket: Socket, lease: Duration, said: Instant) -> Arc<Self> {
        let beats = Beats { until: said + lease, due: said + lease / 4, ..Beats::default() };
        Arc::new(Self { socket, lease, beats: Mutex::new(beats) })
    }

    fn beats(&self) -> MutexGuard<'_, Beats> {
        self.beats.lock().expect("no panic under the lock")
    }
}

impl Device for Heart {
    fn poll(&self, now: Instant) -> bool {
        let seq = {
            let mut beats = self.0.beats();
            if now < beats.due {
                return false;
            }
            let seq = beats.next;
            beats.next += 1;
            beats.due = now + self.0.lease / 4;
            beats.sent.push((seq, now));
            seq
        };
        self.0.socket.send(&proto::encode(&ToManager::Heartbeat { seq }))
    }

    fn next_deadline(&self) -> Option<Instant> {
        Some(self.0.beats().due)
    }
}

impl ControlLink for Link {
    fn poll_send(&self, _: &mut Context<'_>, message: &[u8]) -> Poll<Result<(), LinkDown>> {
        let sent = self.socket.send(message);
        Poll::Ready(if sent { Ok(()) } else { Err(LinkDown) })
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, LinkDown>> {
        let received = self.socket.poll_recv(cx);
        if let Poll::Ready(Ok(message)) = &received
            && let Ok(ToNode::HeartbeatAck { seq, .. }) = proto::decode(message)
        {
            let mut beats = self.beats();
            let at = beats.sent.iter().find(|(n, _)| *n == seq).map(|(_, at)| *at);
            beats.sent.retain(|(n, _)| *n > seq);
            beats.until = at.expect("it was sent") + self.lease;
        }
        received
    }

    fn lease_until(&self) -> Instant {
        self.beats().until
    }
}
