//! The control connection to the cluster manager: TCP, the Noise channel, whole messages, and heartbeats from
//! the poller. When the connection ends, a task makes another one and resumes the membership (`again.rs`).
//!
//! Lock order: receiving direction, sending direction, stack, port. A task that seals a message takes the
//! sealer out of the connection and works without the lock, so that interrupts stay on. The poller seals only
//! heartbeats, of a few bytes, in place.

mod again;
mod enrol;
mod join;
mod key;
mod last_words;
mod patience;
mod poller;

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use platform::{ControlLink, Instant, LinkDown, NetworkError};
use proto::channel::{ChannelError, Opener, Sealer, sealed_len};
use proto::{Resume, ToManager, ToNode, Welcome};

use crate::net::stack::TcpStream;
use crate::sync::IrqMutex;
use crate::time;
pub(crate) use key::{KeySource, cluster_key};
pub(crate) use last_words::end_membership;
pub(crate) use patience::{check, join, retries, tell};

/// Bytes that are read from the connection at a time.
const CHUNK: usize = 32 * 1024;
/// The longest message of the poller, a sealed heartbeat, in bytes.
const HEARTBEAT_MAX: usize = 64;
/// Room in the outgoing buffer for heartbeats behind a waiting message, in bytes.
const HEARTBEAT_ROOM: usize = 16 * HEARTBEAT_MAX;
/// The number of heartbeats whose times are kept until they are acknowledged. If a task computes for longer,
/// the acknowledgements of the latest heartbeats count.
const HEARTBEATS_KEPT: usize = 64;
/// The most messages of a manager before the one that says which manager it is: one for each member and each
/// departure.
const HELD: usize = 1 << 14;
/// Tasks that can wait to send at a time without spinning.
const MAX_WAITERS: usize = 32;

/// Reads messages off a connection.
struct Incoming {
    stream: Arc<TcpStream>,
    opener: Opener,
    chunk: Vec<u8>,
    /// Bytes of `chunk` that have arrived and are not decrypted yet.
    range: core::ops::Range<usize>,
    /// Messages of a manager that the node does not obey yet.
    held: VecDeque<Vec<u8>>,
}

impl Incoming {
    /// Reads messages of a channel whose first bytes, `rest`, have arrived with the handshake.
    fn new(stream: Arc<TcpStream>, opener: Opener, rest: Vec<u8>) -> Self {
        let len = rest.len();
        let mut chunk = rest;
        chunk.resize(CHUNK.max(len), 0);
        Self { stream, opener, chunk, range: 0..len, held: VecDeque::new() }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, RecvError>> {
        loop {
            let mut bytes = self.chunk.get(self.range.clone()).unwrap_or_default();
            let opened = self.opener.open(&mut bytes);
            self.range.start = self.range.end - bytes.len();
            if let Some(message) = opened.map_err(RecvError::Channel)? {
                return Poll::Ready(Ok(message));
            }
            self.range = match self.stream.poll_read(cx, &mut self.chunk) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(RecvError::Tcp(NetworkError::Closed))),
                Poll::Ready(Ok(n)) => 0..n,
                Poll::Ready(Err(e)) => return Poll::Ready(Err(RecvError::Tcp(e))),
            };
        }
    }
}

/// The reason for which receiving has ended.
#[derive(Clone, Copy, Debug)]
enum RecvError {
    Tcp(NetworkError),
    Channel(ChannelError),
}

impl core::fmt::Display for RecvError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Tcp(why) => write!(f, "{why}"),
            Self::Channel(why) => write!(f, "{why}"),
        }
    }
}

/// The receiving direction.
struct Receiving {
    /// `None` while there is no connection.
    incoming: Option<Incoming>,
    /// Messages of a manager that the node obeys, in order.
    ready: VecDeque<Vec<u8>>,
    /// The task that receives, while there is no connection.
    waker: Option<Waker>,
}

/// The way to handle a message of a manager.
enum Verdict {
    /// The node obeys the manager.
    Obey,
    /// The node does not know yet whether it obeys the manager.
    Hold,
    /// The node has seen a later manager.
    Leave,
}

/// The state of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    /// Messages go both ways.
    Up,
    /// The connection has ended, and a task makes another one.
    Broken,
    /// The node has asked at this time to resume its membership. It receives, and sends nothing.
    Asking(Instant),
    /// The node has left, or the manager has refused it.
    Over,
}

/// The sealer and its output buffer.
struct Seal {
    sealer: Sealer,
    bytes: Vec<u8>,
}

impl Seal {
    fn new(sealer: Sealer) -> Self {
        Self { sealer, bytes: Vec::with_capacity(HEARTBEAT_ROOM) }
    }
}

/// The sending direction.
struct Outgoing {
    line: Line,
    /// The connection; `None` while there is none.
    stream: Option<Arc<TcpStream>>,
    /// The number of the connection, from zero on.
    number: u64,
    /// The sealer; absent while a task uses it.
    seal: Option<Seal>,
    /// Sealed bytes; `bytes[sent..]` have not been passed to the connection yet.
    bytes: Vec<u8>,
    sent: usize,
    waiters: Vec<Waker>,
    /// The task that connects again.
    again: Option<Waker>,
    /// True once the node has told the manager that it leaves, or LITE has ended the membership.
    leaving: bool,
    heartbeats: Heartbeats,
    /// The node's membership, as it resumes it.
    resume: Resume,
}

/// The state of the heartbeats.
struct Heartbeats {
    every: Duration,
    next: Instant,
    seq: u64,
    /// The number and time of the latest heartbeats, each at the index of its number modulo the length.
    sent: [(u64, Instant); HEARTBEATS_KEPT],
}

/// The control connection of a node that has joined.
pub(crate) struct ManagerLink {
    /// Used by tasks only, so without masking interrupts: decrypting a message takes time.
    receiving: spin::Mutex<Receiving>,
    outgoing: IrqMutex<Outgoing>,
    lease: Duration,
    /// The end of the lease according to received acknowledgements, in nanoseconds.
    lease_until: AtomicU64,
    /// The time at which the last message was received, in nanoseconds.
    heard: AtomicU64,
    /// The version of the protocol that the manager has accepted.
    version: u16,
    /// The first byte of encoded last words.
    last_words_tag: u8,
    /// The first byte of encoded lines of the log, if the manager knows them.
    log_tag: Option<u8>,
}

/// The connection that the poller serves.
static LINK: IrqMutex<Option<Arc<ManagerLink>>> = IrqMutex::new(None);

impl ManagerLink {
    /// Makes the link of a node as [`new`](Self::new) does. The poller and the last words use it from now on.
    fn install(incoming: Incoming, sealer: Sealer, asked: Instant, welcome: (&Welcome, u16)) -> Arc<Self> {
        let link = Arc::new(Self::new(incoming, sealer, asked, welcome));
        *LINK.lock() = Some(link.clone());
        crate::diag::set_last_words(last_words::say);
        link
    }

    /// Makes the link of a node that asked for its membership at `asked`, by a version of the protocol. Its
    /// first lease counts from then.
    fn new(incoming: Incoming, sealer: Sealer, asked: Instant, (welcome, version): (&Welcome, u16)) -> Self {
        let now = time::now();
        let lease = Duration::from_millis(welcome.lease_ms.into());
        let sent = [(u64::MAX, Instant::ZERO); HEARTBEATS_KEPT];
        let heartbeats = Heartbeats { every: lease / 3, next: now + lease / 3, seq: 0, sent };
        let Welcome { node, incarnation, epoch, .. } = *welcome;
        let secret = welcome.secret.clone();
        let outgoing = Outgoing {
            line: Line::Up,
            stream: Some(incoming.stream.clone()),
            number: 0,
            seal: Some(Seal::new(sealer)),
            bytes: Vec::with_capacity(HEARTBEAT_ROOM),
            sent: 0,
            waiters: Vec::with_capacity(MAX_WAITERS),
            again: None,
            leaving: false,
            heartbeats,
            resume: Resume { version, node, incarnation, secret, epoch },
        };
        let tag = |bytes: Vec<u8>| bytes.first().copied().unwrap_or(0xff);
        let lines = ToManager::Log { lines: Vec::new() };
        Self {
            receiving: spin::Mutex::new(Receiving {
                incoming: Some(incoming),
                ready: VecDeque::new(),
                waker: None,
            }),
            outgoing: IrqMutex::new(outgoing),
            lease,
            lease_until: AtomicU64::new((asked + lease).as_nanos()),
            heard: AtomicU64::new(now.as_nanos()),
            last_words_tag: tag(proto::encode(&ToManager::LastWords { reason: String::new() })),
            log_tag: (lines.since() <= version).then(|| tag(proto::encode(&lines))),
            version,
        }
    }

    /// Handles a message that concerns the connection itself.
    fn note(&self, message: &[u8]) -> Verdict {
        if !ToNode::is_of_membership(message) {
            if matches!(self.outgoing.lock().line, Line::Asking(_)) {
                return Verdict::Hold;
            }
            self.on_acknowledgement(message);
            return Verdict::Obey;
        }
        match proto::decode(message) {
            Ok(ToNode::Resumed(resumed)) => {
                let mut outgoing = self.outgoing.lock();
                let seen = outgoing.resume.epoch;
                if resumed.epoch < seen {
                    drop(outgoing);
                    let own = resumed.epoch;
                    self.has_broken(&format_args!("its manager has epoch {own}, and there is one of {seen}"));
                    return Verdict::Leave;
                }
                outgoing.resume.epoch = resumed.epoch;
                if let Line::Asking(asked) = outgoing.line {
                    self.lease_until.fetch_max((asked + self.lease).as_nanos(), Ordering::Relaxed);
                    outgoing.heartbeats.next = time::now() + outgoing.heartbeats.every;
                    outgoing.enter(Line::Up);
                }
            }
            Ok(ToNode::Refused { .. }) => self.outgoing.lock().enter(Line::Over),
            _ => {}
        }
        Verdict::Obey
    }

    /// Records an acknowledged heartbeat.
    fn on_acknowledgement(&self, message: &[u8]) {
        // Long messages are not decoded twice.
        if message.len() > ToNode::LONGEST_ACK {
            return;
        }
        let Ok(ToNode::HeartbeatAck { seq, .. }) = proto::decode(message) else { return };
        let sent =
            self.outgoing.lock().heartbeats.sent.iter().find(|(number, _)| *number == seq).map(|(_, at)| *at);
        if let Some(at) = sent {
            self.lease_until.fetch_max((at + self.lease).as_nanos(), Ordering::Relaxed);
        }
    }

    /// Notes that the connection has ended.
    fn has_broken(&self, why: &dyn core::fmt::Display) {
        let broken = self.outgoing.lock().has_broken();
        tell_broken(broken, why);
    }
}

/// Logs the end of a connection, if it was not known.
fn tell_broken(broken: Option<Line>, why: &dyn core::fmt::Display) {
    match broken {
        Some(Line::Over) => log::info!("the connection to the manager has ended: {why}"),
        Some(_) => log::warn!("the connection to the manager has ended, tries to resume: {why}"),
        None => {}
    }
}

impl Outgoing {
    /// Passes waiting bytes to the connection. Returns `Ok(true)` when no byte waits any more.
    fn drain(&mut self) -> Result<bool, NetworkError> {
        let Some(stream) = &self.stream else { return Err(NetworkError::Closed) };
        while let Some(waiting) = self.bytes.get(self.sent..).filter(|w| !w.is_empty()) {
            match stream.try_write(waiting)? {
                0 => return Ok(false),
                n => self.sent += n,
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Changes the state, and wakes the tasks that wait for that.
    fn enter(&mut self, line: Line) {
        self.line = line;
        self.wake_all();
        if let Some(again) = self.again.take() {
            again.wake();
        }
    }

    /// Notes that the connection has ended. Returns the new state, or `None` if the end was known.
    fn has_broken(&mut self) -> Option<Line> {
        if matches!(self.line, Line::Broken | Line::Over) {
            return None;
        }
        let line = if self.leaving { Line::Over } else { Line::Broken };
        self.enter(line);
        Some(line)
    }

    fn wake_all(&mut self) {
        for waker in self.waiters.drain(..) {
            waker.wake();
        }
    }

    fn wait(&mut self, waker: &Waker) {
        if self.waiters.iter().any(|w| w.will_wake(waker)) {
            return;
        }
        if self.waiters.len() < MAX_WAITERS {
            self.waiters.push(waker.clone());
        } else {
            waker.wake_by_ref();
        }
    }

    /// Queues a heartbeat if it is due and there is room. Does not allocate.
    fn queue_heartbeat(&mut self, now: Instant) {
        if now < self.heartbeats.next || self.bytes.capacity() - self.bytes.len() < HEARTBEAT_MAX {
            return;
        }
        // While a task is sealing, the heartbeat waits for the next poll.
        let Some(seal) = &mut self.seal else { return };
        let seq = self.heartbeats.seq;
        let mut plain = [0; 16];
        let mut sealed = [0; HEARTBEAT_MAX];
        // Neither call fails: a heartbeat has at most 11 bytes, and the buffers are longer.
        let Ok(plain) = postcard::to_slice(&ToManager::Heartbeat { seq }, &mut plain) else { return };
        let Ok(len) = seal.sealer.seal_into(plain, &mut sealed) else { return };
        self.bytes.extend_from_slice(&sealed[..len]);
        if let Some(kept) = self.heartbeats.sent.get_mut((seq % HEARTBEATS_KEPT as u64) as usize) {
            *kept = (seq, now);
        }
        self.heartbeats.seq += 1;
        self.heartbeats.next = now + self.heartbeats.every;
    }
}

impl ControlLink for ManagerLink {
    fn poll_send(&self, cx: &mut Context<'_>, message: &[u8]) -> Poll<Result<(), LinkDown>> {
        let (number, mut seal) = {
            let mut outgoing = self.outgoing.lock();
            match outgoing.line {
                Line::Up => {}
                Line::Over => return Poll::Ready(Err(LinkDown)),
                Line::Broken | Line::Asking(_) => {
                    outgoing.wait(cx.waker());
                    return Poll::Pending;
                }
            }
            let seal = match outgoing.drain() {
                Ok(true) => outgoing.seal.take(),
                Ok(false) => None,
                Err(why) => {
                    outgoing.wait(cx.waker());
                    let broken = outgoing.has_broken();
                    drop(outgoing);
                    tell_broken(broken, &why);
                    return Poll::Pending;
                }
            };
            match seal {
                Some(seal) => (outgoing.number, seal),
                None => {
                    outgoing.wait(cx.waker());
                    return Poll::Pending;
                }
            }
        };
        // There must be room for heartbeats behind the message, so that they do not wait until it is sent.
        seal.bytes.clear();
        seal.bytes.reserve(sealed_len(message.len()) + HEARTBEAT_ROOM);
        let sealed = seal.sealer.seal(message, &mut seal.bytes);
        let mut outgoing = self.outgoing.lock();
        if outgoing.number != number {
            // The message is lost with its connection.
            return Poll::Ready(Ok(()));
        }
        // No byte was queued meanwhile, because queuing needs the sealer.
        core::mem::swap(&mut outgoing.bytes, &mut seal.bytes);
        outgoing.seal = Some(seal);
        outgoing.sent = 0;
        outgoing.leaving |= matches!(proto::decode(message), Ok(ToManager::Leave));
        let drained = outgoing.drain();
        outgoing.wake_all();
        drop(outgoing);
        if let Err(why) = sealed {
            self.has_broken(&why);
        } else if let Err(why) = drained {
            self.has_broken(&why);
        }
        Poll::Ready(Ok(()))
    }

    /// Receives a message. Only one task at a time may wait for messages.
    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, LinkDown>> {
        let Some(mut receiving) = self.receiving.try_lock() else {
            // Another task is receiving on another processor at this moment.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        if let Some(message) = receiving.ready.pop_front() {
            return Poll::Ready(Ok(message));
        }
        while let Some(incoming) = &mut receiving.incoming {
            let message = match incoming.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(message)) => message,
                Poll::Ready(Err(why)) => {
                    receiving.incoming = None;
                    self.has_broken(&why);
                    break;
                }
            };
            self.heard.store(time::now().as_nanos(), Ordering::Relaxed);
            match self.note(&message) {
                Verdict::Obey if incoming.held.is_empty() => return Poll::Ready(Ok(message)),
                Verdict::Obey => {
                    let mut held = core::mem::take(&mut incoming.held);
                    held.push_back(message);
                    let first = held.pop_front();
                    receiving.ready = held;
                    return Poll::Ready(first.ok_or(LinkDown));
                }
                Verdict::Hold if incoming.held.len() < HELD => {
                    incoming.held.push_back(message);
                }
                Verdict::Hold => {
                    receiving.incoming = None;
                    self.has_broken(&"the manager does not say which one it is");
                }
                Verdict::Leave => receiving.incoming = None,
            }
        }
        receiving.waker = Some(cx.waker().clone());
        match self.outgoing.lock().line {
            Line::Over => Poll::Ready(Err(LinkDown)),
            Line::Up | Line::Broken | Line::Asking(_) => Poll::Pending,
        }
    }

    fn lease_until(&self) -> Instant {
        Instant::from_nanos(self.lease_until.load(Ordering::Relaxed))
    }

    fn version(&self) -> u16 {
        self.version
    }

    fn end(&self) {
        let mut outgoing = self.outgoing.lock();
        outgoing.leaving = true;
        if matches!(outgoing.line, Line::Broken | Line::Asking(_)) {
            outgoing.enter(Line::Over);
        }
    }
}
