//! The control connection to the manager: one thread that sends messages and heartbeats, and one that
//! receives.
//!
//! A thread of its own sends the heartbeats, so that the lease lasts whatever applications do with their
//! threads.

use crate::Clock;
use manager::client::{ClientError, Connection, Receiving, Sending};
use parking_lot::{Condvar, Mutex};
use platform::{ControlLink, Instant, LinkDown};
use proto::{ToManager, ToNode};
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
/// The number of heartbeats whose times are kept until they are acknowledged.
const BEATS_KEPT: usize = 64;

/// The control connection of a node that has joined.
pub(crate) struct Link {
    clock: Clock,
    lease: Duration,
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

struct Outgoing {
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
    lease_until: Instant,
}

impl Link {
    /// Serves the connection of a node that has just been admitted; both threads live until it ends. It
    /// stays open while the manager is silent for up to `silence`.
    pub(crate) fn start(
        clock: Clock,
        connection: Connection,
        (asked, lease): (Instant, Duration),
        silence: Option<Duration>,
    ) -> Result<Arc<Self>, ClientError> {
        let Connection { sending, receiving } = connection;
        // A suspended node keeps its connection: the answer that ends the suspension comes on it.
        sending.outlast(silence.map(|silence| silence + lease))?;
        receiving.limit_waiting(SOCKET)?;
        let incoming =
            Incoming { queue: VecDeque::new(), receiver: None, down: false, lease_until: asked + lease };
        let outgoing = Outgoing {
            queue: VecDeque::new(),
            senders: Vec::new(),
            closing: false,
            sent: VecDeque::with_capacity(BEATS_KEPT),
        };
        let link = Arc::new(Self {
            clock,
            lease,
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

    fn send_all(&self, mut sending: Sending) {
        let every = self.lease / 3;
        let mut next_beat = self.clock.now() + every;
        let mut seq = 0;
        while let Some(message) = self.next_to_send(next_beat) {
            let sent = match message {
                Some(message) => sending.send_encoded(&message),
                None => {
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
            };
            if let Err(error) = sent {
                self.end(&error);
                return sending.hang_up();
            }
        }
        // The manager closes the connection once it has received everything.
        sending.finish();
        *self.finished.lock() = Some(sending);
    }

    /// Returns the next message; `Some(None)` if the heartbeat is due, `None` at the end.
    fn next_to_send(&self, next_beat: Instant) -> Option<Option<Vec<u8>>> {
        let mut outgoing = self.outgoing.lock();
        loop {
            let wait = next_beat - self.clock.now();
            if wait.is_zero() && !outgoing.closing {
                return Some(None);
            }
            if let Some(message) = outgoing.queue.pop_front() {
                outgoing.senders.drain(..).for_each(Waker::wake);
                return Some(Some(message));
            }
            if outgoing.closing {
                return None;
            }
            self.to_send.wait_for(&mut outgoing, wait);
        }
    }

    fn receive_all(&self, mut receiving: Receiving) {
        loop {
            match receiving.receive_encoded(None) {
                Ok(message) => {
                    let mut incoming = self.incoming.lock();
                    while incoming.queue.len() >= IN && !incoming.down {
                        self.room.wait(&mut incoming);
                    }
                    incoming.queue.push_back(message);
                    if let Some(receiver) = incoming.receiver.take() {
                        receiver.wake();
                    }
                }
                Err(error) => {
                    self.end(&error);
                    return receiving.hang_up();
                }
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
}
