//! The nodes' ends of their control connections.

use super::SimManager;
use lite::testing::Device;
use manager::core::ConnId;
use platform::{ControlLink, Instant, LinkDown};
use proto::{Hello, Resume, Resumed, ToManager, ToNode, Welcome};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
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

/// The pause before another attempt to resume.
const AGAIN: Duration = Duration::from_millis(100);

/// The connection of a node, or the lack of one.
enum Line {
    Up(Socket),
    /// The node tries to resume at this time.
    Down(Instant),
    /// The node has asked to resume, at this time.
    Asking(Socket, Instant),
}

struct State {
    line: Line,
    /// The task that waits for messages, and those that wait for a connection to send.
    waker: Option<Waker>,
    senders: Vec<Waker>,
    /// The times at which the unacknowledged heartbeats were sent, the oldest first, with their numbers.
    sent: Vec<(u64, Instant)>,
    until: Instant,
    /// The time at which the next heartbeat is due.
    due: Instant,
    next: u64,
    resume: Resume,
    /// True once LITE has ended the membership.
    ended: bool,
}

/// A node's link to the manager, over one connection after the other.
pub(crate) struct Link {
    manager: Arc<SimManager>,
    lease: Duration,
    state: Mutex<State>,
}

/// The sender of a node's heartbeats, which also connects again.
pub(crate) struct Heart(pub(crate) Arc<Link>);

impl Link {
    /// Makes the link of a node that has sent its hello of a `version` at `said`, by its own clock.
    pub(crate) fn new(socket: Socket, version: u16, welcome: &Welcome, said: Instant) -> Arc<Self> {
        let lease = Duration::from_millis(u64::from(welcome.lease_ms));
        let Welcome { node, incarnation, epoch, .. } = *welcome;
        let secret = welcome.secret.clone();
        let manager = socket.manager.clone();
        let state = State {
            line: Line::Up(socket),
            waker: None,
            senders: Vec::new(),
            sent: Vec::new(),
            until: said + lease,
            due: said + lease / 4,
            next: 0,
            resume: Resume { version, node, incarnation, secret, epoch },
            ended: false,
        };
        Arc::new(Self { manager, lease, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the lock")
    }
}

impl State {
    fn fall(&mut self, now: Instant) {
        self.line = Line::Down(now + AGAIN);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Device for Heart {
    fn poll(&self, now: Instant) -> bool {
        let mut state = self.0.state();
        match &state.line {
            _ if state.ended => false,
            Line::Up(socket) if state.due <= now => {
                let (socket, seq) = (socket.clone(), state.next);
                state.next += 1;
                state.due = now + self.0.lease / 4;
                state.sent.push((seq, now));
                drop(state);
                socket.send(&proto::encode(&ToManager::Heartbeat { seq }))
            }
            Line::Down(at) if *at <= now => {
                let Some(socket) = self.0.manager.connect() else {
                    state.line = Line::Down(now + AGAIN);
                    return true;
                };
                self.0.manager.joined(&socket, state.resume.node);
                socket.send(&proto::encode(&Hello::Resume(state.resume.clone())));
                state.line = Line::Asking(socket, now);
                if let Some(waker) = state.waker.take() {
                    waker.wake();
                }
                true
            }
            Line::Asking(socket, said) if *said + Resume::answer_within(self.0.lease) <= now => {
                socket.close();
                state.fall(now);
                true
            }
            _ => false,
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let state = self.0.state();
        if state.ended {
            return None;
        }
        Some(match &state.line {
            Line::Up(_) => state.due,
            Line::Down(at) => *at,
            Line::Asking(_, said) => *said + Resume::answer_within(self.0.lease),
        })
    }
}

impl ControlLink for Link {
    fn poll_send(&self, cx: &mut Context<'_>, message: &[u8]) -> Poll<Result<(), LinkDown>> {
        let mut state = self.state();
        let known = proto::decode::<ToManager>(message).is_ok_and(|m| m.since() <= state.resume.version);
        assert!(known, "a manager of this node's release does not know {message:?}");
        match &state.line {
            // A message to a connection that has ended is lost, as in the buffers of a machine.
            Line::Up(socket) => {
                socket.send(message);
                Poll::Ready(Ok(()))
            }
            _ => {
                state.senders.push(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, LinkDown>> {
        let mut state = self.state();
        let (socket, said) = match &state.line {
            Line::Up(socket) => (socket.clone(), None),
            Line::Asking(socket, said) => (socket.clone(), Some(*said)),
            Line::Down(_) => {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        };
        state.waker = Some(cx.waker().clone());
        let message = match socket.poll_recv(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(message)) => message,
            Poll::Ready(Err(_)) => {
                // The heart knows the time, and tries at once.
                state.line = Line::Down(Instant::ZERO);
                return Poll::Pending;
            }
        };
        let decoded = proto::decode::<ToNode>(&message);
        let known = decoded.as_ref().is_ok_and(|m| m.since() <= state.resume.version);
        assert!(known, "this node's release does not know {message:?}");
        match decoded {
            Ok(ToNode::HeartbeatAck { seq, .. }) => {
                let at = state.sent.iter().find(|(n, _)| *n == seq).map(|(_, at)| *at);
                state.sent.retain(|(n, _)| *n > seq);
                if let Some(at) = at {
                    state.until = state.until.max(at + self.lease);
                }
            }
            Ok(ToNode::Resumed(Resumed { epoch, .. })) => {
                if let Some(said) = said {
                    state.until = state.until.max(said + self.lease);
                    state.due = said + self.lease / 4;
                }
                state.sent.clear();
                state.resume.epoch = epoch;
                state.line = Line::Up(socket);
                state.senders.drain(..).for_each(Waker::wake);
            }
            _ => {}
        }
        Poll::Ready(Ok(message))
    }

    fn lease_until(&self) -> Instant {
        self.state().until
    }

    fn version(&self) -> u16 {
        self.state().resume.version
    }

    fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        if let Line::Asking(socket, _) = &state.line {
            socket.close();
        }
    }
}
