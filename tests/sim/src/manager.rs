//! The manager's state machine, and control connections to it.

use crate::Trace;
use lite::testing::{Device, Host};
use manager::core::{Action, Config, ConnId, Core, Event, Message, Saved};
use platform::{ControlLink, Instant, LinkDown, Platform};
use proto::{Hello, Join, NodeId, ToManager, ToNode, Welcome};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

#[derive(Default)]
struct Inbox {
    messages: VecDeque<Vec<u8>>,
    waker: Option<Waker>,
    closed: bool,
}

struct State {
    core: Core,
    /// What has come on which connection.
    arrived: VecDeque<(ConnId, Vec<u8>)>,
    inboxes: BTreeMap<ConnId, Inbox>,
    /// The connections of each node that has joined: of all its lives, the present one last.
    conns: BTreeMap<NodeId, Vec<ConnId>>,
    /// Connections on which nothing arrives for now, and what was sent to the manager on them meanwhile.
    stalled: BTreeMap<ConnId, Vec<Vec<u8>>>,
    last: u64,
    log: Vec<String>,
}

/// The manager.
pub struct SimManager {
    state: Mutex<State>,
    trace: Arc<Trace>,
}

/// A node's connection.
struct Link {
    manager: Arc<SimManager>,
    conn: ConnId,
    host: Arc<Host>,
    lease: Duration,
    /// When the heartbeats went out, the first first; and until when the lease holds.
    beats: Mutex<(Vec<Instant>, Instant)>,
}

/// Sends a node's heartbeats.
pub struct Heart {
    link: Arc<Link>,
    period: Duration,
    /// When the next is due, and how many there were.
    beats: Mutex<(Instant, u64)>,
}

impl Device for Heart {
    fn poll(&self, now: Instant) -> bool {
        let mut beats = self.beats.lock().expect("no panic under the lock");
        if now < beats.0 {
            return false;
        }
        let seq = beats.1;
        *beats = (now + self.period, seq + 1);
        self.link.beats.lock().expect("no panic under the lock").0.push(now);
        self.link.send(&proto::encode(&ToManager::Heartbeat { seq }))
    }

    fn next_deadline(&self) -> Option<Instant> {
        Some(self.beats.lock().expect("no panic under the lock").0)
    }
}

impl SimManager {
    /// Gives each member that lease.
    #[must_use]
    pub fn new(lease: Duration, trace: Arc<Trace>) -> Arc<Self> {
        let core = Core::new(Config { lease, ..Config::default() }, Saved::default());
        let state = State {
            core,
            arrived: VecDeque::new(),
            inboxes: BTreeMap::new(),
            conns: BTreeMap::new(),
            stalled: BTreeMap::new(),
            last: 0,
            log: Vec::new(),
        };
        Arc::new(Self { state: Mutex::new(state), trace })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the lock")
    }

    /// What the manager has logged.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.lock().log.clone()
    }

    /// A node joins. Its heart is a device of its host: it stops when that does.
    ///
    /// # Panics
    /// If it is refused.
    pub fn join(
        self: &Arc<Self>,
        host: &Arc<Host>,
        join: Join,
    ) -> (Arc<dyn ControlLink>, Welcome, Arc<Heart>) {
        let now = host.true_time();
        let conn = {
            let mut state = self.lock();
            state.last += 1;
            let conn = ConnId(state.last);
            state.inboxes.insert(conn, Inbox::default());
            let opened = state.core.handle(now, Event::Opened { conn, peer: "simulated" });
            self.perform(&mut state, opened, now);
            let hello = proto::encode(&Hello::Node(join));
            let joined = state.core.handle(now, Event::Received { conn, bytes: &hello });
            self.perform(&mut state, joined, now);
            conn
        };
        let first = self.lock().inboxes.get_mut(&conn).and_then(|i| i.messages.pop_front());
        let welcome = match proto::decode(&first.expect("an answer")) {
            Ok(ToNode::Welcome(welcome)) => welcome,
            other => panic!("{other:?} instead of a welcome"),
        };
        self.lock().conns.entry(welcome.node).or_default().push(conn);
        let now = host.now();
        let lease = Duration::from_millis(u64::from(welcome.lease_ms));
        let beats = Mutex::new((Vec::new(), now + lease));
        let link = Arc::new(Link { manager: self.clone(), conn, host: host.clone(), lease, beats });
        let period = lease / 4;
        let heart = Heart { link: link.clone(), period, beats: Mutex::new((now + period, 0)) };
        (link, welcome, Arc::new(heart))
    }

    /// Nothing arrives on a node's connection any more, in neither direction; or what was held arrives after all, also on the
    /// connections of former lives of that number: their nodes have yet to learn that they are dead.
    pub fn stall(&self, node: NodeId, stalled: bool) {
        let mut state = self.lock();
        let conns = state.conns.get(&node).cloned().unwrap_or_default();
        if stalled {
            if let Some(conn) = conns.last() {
                state.stalled.entry(*conn).or_default();
            }
            return;
        }
        for conn in conns {
            let held = state.stalled.remove(&conn).unwrap_or_default();
            state.arrived.extend(held.into_iter().map(|message| (conn, message)));
            if let Some(waker) = state.inboxes.get_mut(&conn).and_then(|inbox| inbox.waker.take()) {
                waker.wake();
            }
        }
    }

    fn perform(&self, state: &mut State, actions: Vec<Action>, now: Instant) {
        for action in actions {
            match action {
                Action::Send { conn, message: message @ (Message::ToNode(_) | Message::ToNodes(_)) } => {
                    let bytes = message.encode().into_owned();
                    self.trace.event(now.as_nanos(), 1 << 32 | conn.0, &bytes);
                    let Some(inbox) = state.inboxes.get_mut(&conn) else { continue };
                    inbox.messages.push_back(bytes);
                    if let Some(waker) = inbox.waker.take() {
                        waker.wake();
                    }
                }
                Action::Close { conn } => {
                    let Some(inbox) = state.inboxes.get_mut(&conn) else { continue };
                    inbox.closed = true;
                    if let Some(waker) = inbox.waker.take() {
                        waker.wake();
                    }
                }
                Action::Log(line) => state.log.push(line),
                Action::Save(record) => {
                    let saved = state.core.handle(now, Event::Saved { record: &record });
                    debug_assert!(saved.is_empty(), "a disk that never fails");
                }
                Action::Send { .. } | Action::Reading { .. } => {}
            }
        }
    }
}

impl Device for SimManager {
    fn poll(&self, now: Instant) -> bool {
        let mut state = self.lock();
        let mut any = false;
        while let Some((conn, bytes)) = state.arrived.pop_front() {
            any = true;
            let actions = state.core.handle(now, Event::Received { conn, bytes: &bytes });
            self.perform(&mut state, actions, now);
        }
        if state.core.next_deadline().is_some_and(|at| at <= now) {
            let actions = state.core.handle(now, Event::Tick);
            any |= !actions.is_empty();
            self.perform(&mut state, actions, now);
        }
        any
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.lock().core.next_deadline()
    }
}

impl Link {
    fn send(&self, message: &[u8]) -> bool {
        let mut state = self.manager.lock();
        if state.inboxes.get(&self.conn).is_none_or(|i| i.closed) {
            return false;
        }
        self.manager.trace.event(self.host.true_time().as_nanos(), 2 << 32 | self.conn.0, message);
        match state.stalled.get_mut(&self.conn) {
            Some(held) => held.push(message.to_vec()),
            None => state.arrived.push_back((self.conn, message.to_vec())),
        }
        true
    }
}

impl ControlLink for Link {
    fn poll_send(&self, _: &mut Context<'_>, message: &[u8]) -> Poll<Result<(), LinkDown>> {
        Poll::Ready(if self.send(message) { Ok(()) } else { Err(LinkDown) })
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, LinkDown>> {
        let mut state = self.manager.lock();
        let stalled = state.stalled.contains_key(&self.conn);
        let Some(inbox) = state.inboxes.get_mut(&self.conn) else { return Poll::Ready(Err(LinkDown)) };
        if stalled {
            inbox.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if let Some(message) = inbox.messages.pop_front() {
            if let Ok(ToNode::HeartbeatAck { seq }) = proto::decode(&message) {
                let (sent, until) = &mut *self.beats.lock().expect("no panic under the lock");
                *until = sent[seq as usize] + self.lease;
            }
            return Poll::Ready(Ok(message));
        }
        if inbox.closed {
            return Poll::Ready(Err(LinkDown));
        }
        inbox.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn lease_until(&self) -> Instant {
        self.beats.lock().expect("no panic under the lock").1
    }
}
