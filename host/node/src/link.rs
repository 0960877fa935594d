//! The control connection to the manager: one thread that sends messages and heartbeats, and one that
//! receives. When the connection ends, the receiving thread makes another one and resumes the membership.
//!
//! A thread of its own sends the heartbeats, so that the lease lasts whatever applications do with their
//! threads.

use crate::Clock;
use manager::client::{ClientError, Connection, REPLY_TIMEOUT, Receiving, Sending, addresses};
use parking_lot::{Condvar, Mutex};
use platform::{ControlLink, Instant, LinkDown};
use proto::channel::{ClusterKey, Role};
use proto::{Hello, Resume, Resumed, ToManager, ToNode, Welcome};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The number of queued messages at which senders wait.
const OUT: usize = 64;
/// The number of received messages at which the connection is not read any more. Few, as are the bytes in
/// the socket, so that little is queued before the acknowledgements of heartbeats; the task that takes
/// messages never waits for a job.
const IN: usize = 4;
/// The bytes that may be queued in the socket.
const SOCKET: usize = 128 << 10;
/// The pause between two attempts to connect again.
const AGAIN: Duration = Duration::from_millis(100);
/// The most messages of a manager before the one that says which manager it is: one for each member and each
/// departure.
const HELD: usize = 1 << 14;
/// The number of heartbeats whose times are kept until they are acknowledged.
const BEATS_KEPT: usize = 64;

/// The control connection of a node that has joined.
pub(crate) struct Link {
    clock: Clock,
    lease: Duration,
    /// The version of the protocol that the manager has accepted.
    version: u16,
    manager: Manager,
    outgoing: Mutex<Outgoing>,
    /// Notified when there is a message to send, or at the end.
    to_send: Condvar,
    incoming: Mutex<Incoming>,
    /// Notified when there is room for received messages, or at the end.
    room: Condvar,
    /// Notified when the connection is down.
    down: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The direction to the manager, once nothing more is sent.
    finished: Mutex<Option<Sending>>,
    /// True while the node leaves: the manager's end of the connection is no error then.
    leaving: AtomicBool,
}

/// The means of a node to connect to the manager again.
pub(crate) struct Manager {
    /// The addresses of all managers, which commas separate.
    pub(crate) address: String,
    pub(crate) key: ClusterKey,
    /// The longest time for which the manager may be silent beyond the lease.
    pub(crate) silence: Option<Duration>,
}

impl Manager {
    /// Prepares a connection for a manager that may be silent.
    fn prepare(&self, connection: &Connection, lease: Duration) -> Result<(), ClientError> {
        // A suspended node keeps its connection: the answer that ends the suspension comes on it.
        connection.sending.outlast(self.silence.map(|silence| silence + lease))?;
        connection.receiving.limit_waiting(SOCKET)
    }

    /// Connects to one of the managers: the `turn`-th.
    fn open(&self, turn: usize, lease: Duration) -> Result<Connection, ClientError> {
        let all = addresses(&self.address);
        let address = all.get(turn % all.len()).copied().unwrap_or_default();
        let limit =
            if all.len() > 1 { Resume::answer_within(lease).min(REPLY_TIMEOUT) } else { REPLY_TIMEOUT };
        Connection::open_within(address, &self.key, Role::Node, limit)
    }

    /// Returns the time for which the manager may be silent before the node asks another one, if there are
    /// several. The manager answers at least each third of the lease.
    fn outlasts(&self, lease: Duration) -> Option<Duration> {
        (addresses(&self.address).len() > 1).then_some(lease * 2 / 3)
    }
}

struct Outgoing {
    /// The direction to the manager of a new connection, once the membership is resumed on it.
    fresh: Option<Sending>,
    resume: Resume,
    queue: VecDeque<Vec<u8>>,
    senders: Vec<Waker>,
    /// Nothing is queued any more; once the queue is empty the connection ends.
    closing: bool,
    sent: VecDeque<(u64, Instant)>,
}

struct Incoming {
    queue: VecDeque<Vec<u8>>,
    receiver: Option<Waker>,
    /// True once no more messages arrive.
    down: bool,
    /// The time at which the node has asked for its membership, or to resume it.
    asked: Instant,
    lease_until: Instant,
}

/// The next step of the sending thread.
enum Next {
    Message(Vec<u8>),
    Heartbeat,
    /// Go on with another connection.
    Fresh(Sending),
    End,
}

impl Link {
    /// Serves the connection of a node that has just been admitted; both threads live until the membership
    /// ends.
    pub(crate) fn start(
        clock: Clock,
        connection: Connection,
        (asked, welcome, version): (Instant, &Welcome, u16),
        manager: Manager,
    ) -> Result<Arc<Self>, ClientError> {
        let lease = Duration::from_millis(welcome.lease_ms.into());
        manager.prepare(&connection, lease)?;
        let Connection { sending, receiving } = connection;
        let (queue, lease_until) = (VecDeque::new(), asked + lease);
        let incoming = Incoming { queue, receiver: None, down: false, asked, lease_until };
        let Welcome { node, incarnation, epoch, .. } = *welcome;
        let secret = welcome.secret.clone();
        let outgoing = Outgoing {
            fresh: None,
            resume: Resume { version, node, incarnation, secret, epoch },
            queue: VecDeque::new(),
            senders: Vec::new(),
            closing: false,
            sent: VecDeque::with_capacity(BEATS_KEPT),
        };
        let link = Arc::new(Self {
            clock,
            lease,
            version,
            manager,
            outgoing: Mutex::new(outgoing),
            to_send: Condvar::new(),
            incoming: Mutex::new(incoming),
            room: Condvar::new(),
            down: Condvar::new(),
            threads: Mutex::default(),
            finished: Mutex::new(None),
            leaving: AtomicBool::new(false),
        });
        let lost = |source: io::Error| ClientError::Lost(source);
        let (sender, receiver) = (link.clone(), link.clone());
        let start = |name: &str| thread::Builder::new().name(name.into());
        let send = start("lite-heartbeat").spawn(move || sender.send_all(sending)).map_err(lost)?;
        link.threads.lock().push(send);
        let receive = start("lite-control").spawn(move || receiver.receive_all(receiving)).map_err(lost)?;
        link.threads.lock().push(receive);
        Ok(link)
    }

    fn send_all(&self, first: Sending) {
        let mut sending = Some(first);
        let every = self.lease / 3;
        let mut next_beat = self.clock.now() + every;
        let mut seq = 0;
        loop {
            let next = self.next_to_send(sending.is_some().then_some(next_beat));
            let sent = match (next, &mut sending) {
                (Next::End, _) => break,
                (Next::Fresh(fresh), _) => {
                    next_beat = self.clock.now() + every;
                    if let Some(former) = sending.replace(fresh) {
                        former.hang_up();
                    }
                    Ok(())
                }
                (Next::Message(message), Some(sending)) => sending.send_encoded(&message),
                (Next::Heartbeat, Some(sending)) => {
                    let now = self.clock.now();
                    next_beat = now + every;
                    seq += 1;
                    let mut outgoing = self.outgoing.lock();
                    if outgoing.sent.len() == BEATS_KEPT {
                        outgoing.sent.pop_front();
                    }
                    outgoing.sent.push_back((seq, now));
                    drop(outgoing);
                    sending.send(&ToManager::Heartbeat { seq })
                }
                (Next::Message(_) | Next::Heartbeat, None) => Ok(()),
            };
            if sent.is_err()
                && let Some(former) = sending.take()
            {
                // The receiving thread connects again.
                former.hang_up();
            }
        }
        // The manager closes the connection once it has received everything.
        if let Some(sending) = sending {
            sending.finish();
            *self.finished.lock() = Some(sending);
        }
    }

    /// Returns the next step. The heartbeat is due at `next_beat`; `None`: there is no connection, and
    /// messages wait.
    fn next_to_send(&self, next_beat: Option<Instant>) -> Next {
        let mut outgoing = self.outgoing.lock();
        loop {
            if let Some(fresh) = outgoing.fresh.take() {
                return Next::Fresh(fresh);
            }
            let Some(next_beat) = next_beat else {
                if outgoing.closing {
                    return Next::End;
                }
                self.to_send.wait(&mut outgoing);
                continue;
            };
            let wait = next_beat - self.clock.now();
            if wait.is_zero() && !outgoing.closing {
                return Next::Heartbeat;
            }
            if let Some(message) = outgoing.queue.pop_front() {
                outgoing.senders.drain(..).for_each(Waker::wake);
                return Next::Message(message);
            }
            if outgoing.closing {
                return Next::End;
            }
            self.to_send.wait_for(&mut outgoing, wait);
        }
    }

    fn receive_all(&self, mut receiving: Receiving) {
        let mut refused = false;
        let mut turn = 0;
        // The direction to the manager of a connection on which the membership is not resumed yet.
        let mut asking: Option<Sending> = None;
        // The messages of a manager that the node does not obey yet.
        let mut held = Vec::new();
        loop {
            let limit = match &asking {
                Some(_) => Some(Resume::answer_within(self.lease)),
                None => self.manager.outlasts(self.lease),
            };
            let error = match receiving.receive_encoded(limit) {
                Ok(message) => {
                    // Long messages are not decoded twice.
                    let of_membership = ToNode::is_of_membership(&message);
                    let obeys = match of_membership.then(|| proto::decode(&message).ok()).flatten() {
                        Some(ToNode::Resumed(resumed)) => self.resumed(&resumed, &mut asking),
                        Some(ToNode::Refused { .. }) => {
                            refused = true;
                            held.clear();
                            Ok(())
                        }
                        _ if asking.is_some() && held.len() < HELD => {
                            held.push(message);
                            continue;
                        }
                        _ if asking.is_some() => Err(ClientError::Unexpected),
                        _ => Ok(()),
                    };
                    obeys.map(|()| held.drain(..).chain([message]).for_each(|message| self.pass_on(message)))
                }
                Err(error) => Err(error),
            };
            let Err(error) = error else { continue };
            receiving.hang_up();
            held.clear();
            if asking.is_some() || matches!(error, ClientError::Silent(_)) {
                // This manager is a standby, or stopped.
                turn += 1;
            }
            let again = if refused { None } else { self.connect_again(&error, &mut turn) };
            let Some(Connection { sending, receiving: again }) = again else { return self.end(&error) };
            (receiving, asking) = (again, Some(sending));
        }
    }

    /// Goes on with a connection on which the membership is resumed. Refuses a manager that is not the
    /// latest.
    fn resumed(&self, resumed: &Resumed, asking: &mut Option<Sending>) -> Result<(), ClientError> {
        let mut outgoing = self.outgoing.lock();
        let seen = outgoing.resume.epoch;
        if resumed.epoch < seen {
            log::warn!("refuses a manager of epoch {}: there is one of epoch {seen}", resumed.epoch);
            return Err(ClientError::Unexpected);
        }
        outgoing.resume.epoch = resumed.epoch;
        outgoing.fresh = asking.take().or(outgoing.fresh.take());
        drop(outgoing);
        self.to_send.notify_all();
        Ok(())
    }

    /// Queues a received message for the task that takes it.
    fn pass_on(&self, message: Vec<u8>) {
        let mut incoming = self.incoming.lock();
        while incoming.queue.len() >= IN && !incoming.down {
            self.room.wait(&mut incoming);
        }
        incoming.queue.push_back(message);
        if let Some(receiver) = incoming.receiver.take() {
            receiver.wake();
        }
    }

    /// Connects to a manager again, from the `turn`-th on, and asks it to resume the membership. Returns
    /// `None` once the node leaves or ends.
    fn connect_again(&self, why: &dyn std::fmt::Display, turn: &mut usize) -> Option<Connection> {
        let mut told = false;
        loop {
            let mut outgoing = self.outgoing.lock();
            if outgoing.closing || self.leaving.load(Ordering::SeqCst) {
                return None;
            }
            if !std::mem::replace(&mut told, true) {
                log::warn!("the connection to the manager has ended, tries to resume: {why}");
            }
            self.to_send.wait_for(&mut outgoing, AGAIN);
            if outgoing.closing {
                return None;
            }
            let resume = outgoing.resume.clone();
            drop(outgoing);
            let Ok(mut connection) = self.manager.open(*turn, self.lease) else {
                *turn += 1;
                continue;
            };
            let asked = self.clock.now();
            let prepared = self.manager.prepare(&connection, self.lease);
            if prepared.and_then(|()| connection.sending.send(&Hello::Resume(resume))).is_ok() {
                self.incoming.lock().asked = asked;
                return Some(connection);
            }
        }
    }

    /// Ends the connection.
    fn end(&self, why: &dyn std::fmt::Display) {
        let expected = self.close() || self.leaving.load(Ordering::SeqCst);
        let mut incoming = self.incoming.lock();
        if !std::mem::replace(&mut incoming.down, true) && !expected {
            log::error!("control connection to the manager is down: {why}");
        }
        if let Some(receiver) = incoming.receiver.take() {
            receiver.wake();
        }
        drop(incoming);
        self.room.notify_all();
        self.down.notify_all();
    }

    /// Closes the queue; the connection ends when all queued messages are sent. Returns true if the queue
    /// was closed before.
    fn close(&self) -> bool {
        let mut outgoing = self.outgoing.lock();
        let closing = std::mem::replace(&mut outgoing.closing, true);
        outgoing.senders.drain(..).for_each(Waker::wake);
        drop(outgoing);
        self.to_send.notify_all();
        closing
    }

    /// Notes that the node is about to leave, after which the manager ends the connection.
    pub(crate) fn expect_end(&self) {
        self.leaving.store(true, Ordering::SeqCst);
    }

    /// Queues a message, without a wait, unless the manager is of a former release and does not know it.
    pub(crate) fn say(&self, message: &ToManager) {
        let mut outgoing = self.outgoing.lock();
        if !outgoing.closing && message.since() <= self.version {
            outgoing.queue.push_back(proto::encode(message));
        }
        drop(outgoing);
        self.to_send.notify_all();
    }

    /// Sends `message` as the last one and drops the queued messages.
    pub(crate) fn say_last(&self, message: &ToManager) {
        let mut outgoing = self.outgoing.lock();
        if !outgoing.closing {
            outgoing.queue.push_back(proto::encode(message));
        }
        drop(outgoing);
        self.close();
    }

    /// Waits until the connection is down, for at most `timeout`.
    pub(crate) fn wait_down(&self, timeout: Duration) {
        let mut incoming = self.incoming.lock();
        self.down.wait_while_for(&mut incoming, |incoming| !incoming.down, timeout);
    }

    /// Ends the connection and both threads.
    pub(crate) fn stop(&self) {
        self.close();
        self.incoming.lock().down = true;
        self.room.notify_all();
        // The sending thread ends first; then the receiving thread's wait can be ended.
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let joined = thread.join();
            if let Some(sending) = self.finished.lock().take() {
                sending.hang_up();
            }
            if joined.is_err() {
                log::error!("a thread of the control connection has panicked");
            }
        }
    }

    /// Notes an acknowledged heartbeat.
    fn heard(&self, message: &[u8], incoming: &mut Incoming) {
        if ToNode::is_of_membership(message) && matches!(proto::decode(message), Ok(ToNode::Resumed(_))) {
            incoming.lease_until = incoming.lease_until.max(incoming.asked + self.lease);
        }
        // Long messages are not decoded twice.
        if message.len() > ToNode::LONGEST_ACK {
            return;
        }
        let Ok(ToNode::HeartbeatAck { seq, .. }) = proto::decode(message) else { return };
        let outgoing = self.outgoing.lock();
        let sent = outgoing.sent.iter().find(|(number, _)| *number == seq);
        if let Some((_, at)) = sent {
            incoming.lease_until = incoming.lease_until.max(*at + self.lease);
        }
    }
}

impl ControlLink for Link {
    fn poll_send(&self, cx: &mut Context<'_>, message: &[u8]) -> Poll<Result<(), LinkDown>> {
        let mut outgoing = self.outgoing.lock();
        if outgoing.closing {
            return Poll::Ready(Err(LinkDown));
        }
        if outgoing.queue.len() >= OUT {
            if !outgoing.senders.iter().any(|waker| waker.will_wake(cx.waker())) {
                outgoing.senders.push(cx.waker().clone());
            }
            return Poll::Pending;
        }
        outgoing.queue.push_back(message.to_vec());
        drop(outgoing);
        self.to_send.notify_all();
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, LinkDown>> {
        let mut incoming = self.incoming.lock();
        let Some(message) = incoming.queue.pop_front() else {
            if incoming.down {
                return Poll::Ready(Err(LinkDown));
            }
            incoming.receiver = Some(cx.waker().clone());
            return Poll::Pending;
        };
        self.heard(&message, &mut incoming);
        drop(incoming);
        self.room.notify_all();
        Poll::Ready(Ok(message))
    }

    fn lease_until(&self) -> Instant {
        self.incoming.lock().lease_until
    }

    fn version(&self) -> u16 {
        self.version
    }

    fn end(&self) {
        self.close();
    }
}
