//! The control connection to the cluster manager: TCP, the Noise channel, whole messages, and heartbeats from
//! the poller.
//!
//! Lock order: connection, stack, port. A task that seals a message takes the sealer out of the connection
//! and works without the lock, so that interrupts stay on. The poller seals only heartbeats, of a few bytes,
//! in place.

mod join;
mod key;
mod patience;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use platform::{ControlLink, Instant, LinkDown, NetworkError};
use proto::channel::{ChannelError, Opener, Sealer, sealed_len};
use proto::{ToManager, ToNode};

use crate::exec::Poller;
use crate::net::stack::TcpStream;
use crate::sync::IrqMutex;
use crate::{exec, time};
pub(crate) use key::cluster_key;
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
/// Tasks that can wait to send at a time without spinning.
const MAX_WAITERS: usize = 32;
/// The longest time for last words.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Reads messages off a connection.
struct Incoming {
    opener: Opener,
    chunk: Vec<u8>,
    /// Bytes of `chunk` that have arrived and are not decrypted yet.
    range: core::ops::Range<usize>,
}

impl Incoming {
    /// Reads messages of a channel whose first bytes, `rest`, have arrived with the handshake.
    fn new(opener: Opener, rest: Vec<u8>) -> Self {
        let len = rest.len();
        let mut chunk = rest;
        chunk.resize(CHUNK.max(len), 0);
        Self { opener, chunk, range: 0..len }
    }

    fn poll(&mut self, stream: &TcpStream, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, RecvError>> {
        loop {
            let mut bytes = self.chunk.get(self.range.clone()).unwrap_or_default();
            let opened = self.opener.open(&mut bytes);
            self.range.start = self.range.end - bytes.len();
            if let Some(message) = opened.map_err(RecvError::Channel)? {
                return Poll::Ready(Ok(message));
            }
            self.range = match stream.poll_read(cx, &mut self.chunk) {
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

/// The sealer and its output buffer.
struct Seal {
    sealer: Sealer,
    bytes: Vec<u8>,
}

struct Outgoing {
    /// The sealer; absent while a task uses it.
    seal: Option<Seal>,
    /// Sealed bytes; `bytes[sent..]` have not been passed to the connection yet.
    bytes: Vec<u8>,
    sent: usize,
    waiters: Vec<Waker>,
    down: bool,
    heartbeats: Heartbeats,
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
    stream: TcpStream,
    /// Used by tasks only, so without masking interrupts: decrypting a message takes time.
    incoming: spin::Mutex<Incoming>,
    outgoing: IrqMutex<Outgoing>,
    lease: Duration,
    /// The end of the lease according to received acknowledgements, in nanoseconds.
    lease_until: AtomicU64,
    /// The first byte of encoded last words.
    last_words_tag: u8,
}

/// The connection that the poller serves.
static LINK: IrqMutex<Option<Arc<ManagerLink>>> = IrqMutex::new(None);

impl ManagerLink {
    /// Makes the link of a node as [`new`](Self::new) does. The poller and the last words use it from now on.
    fn install(
        stream: TcpStream,
        incoming: Incoming,
        sealer: Sealer,
        membership: (Instant, Duration),
    ) -> Arc<Self> {
        let link = Arc::new(Self::new(stream, incoming, sealer, membership));
        *LINK.lock() = Some(link.clone());
        crate::diag::set_last_words(last_words);
        link
    }

    /// Makes the link of a node that asked for its membership at `asked`. Its first lease counts from then.
    fn new(
        stream: TcpStream,
        incoming: Incoming,
        sealer: Sealer,
        (asked, lease): (Instant, Duration),
    ) -> Self {
        let now = time::now();
        let sent = [(u64::MAX, Instant::ZERO); HEARTBEATS_KEPT];
        let heartbeats = Heartbeats { every: lease / 3, next: now + lease / 3, seq: 0, sent };
        let outgoing = Outgoing {
            seal: Some(Seal { sealer, bytes: Vec::with_capacity(HEARTBEAT_ROOM) }),
            bytes: Vec::with_capacity(HEARTBEAT_ROOM),
            sent: 0,
            waiters: Vec::with_capacity(MAX_WAITERS),
            down: false,
            heartbeats,
        };
        let tag = |bytes: Vec<u8>| bytes.first().copied().unwrap_or(0xff);
        Self {
            stream,
            incoming: spin::Mutex::new(incoming),
            outgoing: IrqMutex::new(outgoing),
            lease,
            lease_until: AtomicU64::new((asked + lease).as_nanos()),
            last_words_tag: tag(proto::encode(&ToManager::LastWords { reason: String::new() })),
        }
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

    fn mark_down(&self, why: &dyn core::fmt::Display) {
        let mut outgoing = self.outgoing.lock();
        if !core::mem::replace(&mut outgoing.down, true) {
            log::error!("control connection to the manager is down: {why}");
        }
        outgoing.wake_all();
    }
}

impl Outgoing {
    /// Passes waiting bytes to the connection. Returns `Ok(true)` when no byte waits any more.
    fn drain(&mut self, stream: &TcpStream) -> Result<bool, NetworkError> {
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
        let mut seal = {
            let mut outgoing = self.outgoing.lock();
            if outgoing.down {
                return Poll::Ready(Err(LinkDown));
            }
            match outgoing.drain(&self.stream) {
                Err(_) => return Poll::Ready(Err(LinkDown)),
                Ok(true) => {}
                Ok(false) => {
                    outgoing.wait(cx.waker());
                    return Poll::Pending;
                }
            }
            match outgoing.seal.take() {
                Some(seal) => seal,
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
        // No byte was queued meanwhile, because queuing needs the sealer.
        core::mem::swap(&mut outgoing.bytes, &mut seal.bytes);
        outgoing.seal = Some(seal);
        outgoing.sent = 0;
        let drained = outgoing.drain(&self.stream);
        outgoing.wake_all();
        drop(outgoing);
        if let Err(e) = sealed {
            self.mark_down(&e);
            return Poll::Ready(Err(LinkDown));
        }
        Poll::Ready(drained.map(|_| ()).map_err(|_| LinkDown))
    }

    /// Receives a message. Only one task at a time may wait for messages.
    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, LinkDown>> {
        let Some(mut incoming) = self.incoming.try_lock() else {
            // Another task is receiving on another processor at this moment.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        match incoming.poll(&self.stream, cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(message)) => {
                self.on_acknowledgement(&message);
                Poll::Ready(Ok(message))
            }
            Poll::Ready(Err(e)) => {
                match e {
                    RecvError::Tcp(e) => self.mark_down(&e),
                    RecvError::Channel(e) => self.mark_down(&e),
                }
                Poll::Ready(Err(LinkDown))
            }
        }
    }

    fn lease_until(&self) -> Instant {
        Instant::from_nanos(self.lease_until.load(Ordering::Relaxed))
    }
}

/// Drives the connection from core 0: sends heartbeats and waiting bytes. Neither allocates nor waits.
struct LinkPoller;

impl LinkPoller {
    /// Makes core 0 drive the connection, once there is one.
    fn register() {
        exec::register_poller(0, Box::new(Self));
    }
}

impl Poller for LinkPoller {
    fn name(&self) -> &'static str {
        "control link"
    }

    fn poll(&mut self, now: Instant, _: u32) -> bool {
        let slot = LINK.lock();
        let Some(link) = slot.as_ref() else { return false };
        let mut outgoing = link.outgoing.lock();
        if outgoing.down {
            return false;
        }
        outgoing.queue_heartbeat(now);
        if outgoing.bytes.is_empty() {
            return false;
        }
        let before = outgoing.sent;
        match outgoing.drain(&link.stream) {
            Ok(true) => {
                outgoing.wake_all();
                true
            }
            Ok(false) => outgoing.sent != before,
            Err(e) => {
                drop(outgoing);
                link.mark_down(&e);
                true
            }
        }
    }

    fn next_deadline(&self) -> Instant {
        let slot = LINK.lock();
        let Some(link) = slot.as_ref() else { return Instant::MAX };
        let outgoing = link.outgoing.lock();
        if outgoing.down { Instant::MAX } else { outgoing.heartbeats.next }
    }

    fn arm(&mut self) -> bool {
        // Bytes that the connection did not accept wait for the peer, whose segments the port announces.
        false
    }
}

/// Ends a membership, if there is one, with last words. Returns true if there was one.
pub(crate) fn end_membership(reason: &str) -> bool {
    if LINK.lock().is_none() {
        return false;
    }
    last_words(reason);
    *LINK.lock() = None;
    true
}

/// Sends the last words of a dying node: tells the manager `reason`, within 200 ms if possible.
fn last_words(reason: &str) {
    let until = time::now() + LAST_WORDS;
    let Some(slot) = LINK.try_lock() else { return };
    let Some(link) = slot.as_ref() else { return };
    let Some(mut outgoing) = link.outgoing.try_lock() else { return };
    let Outgoing { seal: Some(seal), bytes, sent, down: false, .. } = &mut *outgoing else { return };
    // Encoded by hand, because `postcard` allocates: the variant, the length in groups of seven bits, the
    // text.
    let text = reason.as_bytes().get(..reason.len().min(240)).unwrap_or_default();
    let mut plain = [0u8; 256];
    let mut len = 0;
    let mut put = |byte: u8| {
        if let Some(slot) = plain.get_mut(len) {
            *slot = byte;
            len += 1;
        }
    };
    put(link.last_words_tag);
    if text.len() >= 0x80 {
        put((text.len() & 0x7f) as u8 | 0x80);
        put((text.len() >> 7) as u8);
    } else {
        put(text.len() as u8);
    }
    text.iter().copied().for_each(put);
    let mut sealed = [0u8; 256 + 32];
    let Ok(sealed_bytes) = seal.sealer.seal_into(&plain[..len], &mut sealed) else { return };
    let waiting = bytes.get(*sent..).unwrap_or_default();
    for mut part in [waiting, &sealed[..sealed_bytes]] {
        while !part.is_empty() && time::now() < until {
            match link.stream.dying_write(part) {
                Some(Ok(n)) => part = part.get(n..).unwrap_or_default(),
                _ => return,
            }
            if !part.is_empty() && link.stream.dying_poll().is_none() {
                return;
            }
        }
    }
    link.stream.dying_flush(until);
}
