//! One connection of the daemon, from the handshake to the last byte. Reading and writing have deadlines of
//! their own.

use super::door::{Denied, Pending, Permit};
use super::greeting::{self, Greeted};
use super::ha::Tenure;
use super::outbox::{Outbox, Queue};
use crate::core::ConnId;
use crate::log::Log;
use proto::channel::{Opener, Role, RoleKeys, Sealer, UserId};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::yield_now;
use tokio::time::timeout;

/// The time for which the kernel's buffer may accept not a single byte. It accepts more only after much has
/// gone to the peer, so it can take a slow peer a while.
const STALL: Duration = Duration::from_secs(120);

/// The time that a peer has to close after the last message to it.
const LINGER: Duration = Duration::from_secs(2);

/// The number of bytes to read at once.
const READ: usize = 64 << 10;

/// The approximate number of bytes to encrypt before they are written. A control message waits for the batch
/// that is being written.
const BATCH: usize = 64 << 10;

/// The approximate number of bytes that may wait in the kernel to be sent. A control message waits for those
/// too.
const UNSENT: u32 = 64 << 10;

/// The number of bytes that are read or written at once from which a connection lets the others go first.
const MANY: usize = 16 << 10;

/// The number of messages of a connection that may wait for the core.
const IN_HAND: usize = 8;

/// The number of bytes queued to a client above which no more messages are received from it.
const CLIENT_AHEAD: usize = 1 << 20;

/// A message of a connection to the core's task.
#[derive(Debug)]
pub(super) enum Incoming {
    Opened {
        conn: ConnId,
        peer: String,
        user: Option<UserId>,
        outbox: Outbox,
    },
    Received {
        conn: ConnId,
        bytes: Vec<u8>,
        /// The permit of the message. It is released when the core has handled the message.
        in_hand: OwnedSemaphorePermit,
    },
    Sent {
        conn: ConnId,
        bulk: usize,
    },
    Closed {
        conn: ConnId,
        reason: String,
    },
}

/// The parts of the daemon that all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) keys: RoleKeys,
    pub(super) core: mpsc::Sender<Incoming>,
    pub(super) log: Log,
    /// The right to act, if several managers share their state.
    pub(super) tenure: Option<Tenure>,
}

/// Serves a connection until it ends.
pub(super) async fn serve(mut stream: TcpStream, conn: ConnId, mut pending: Pending, shared: Arc<Shared>) {
    let peer = stream.peer_addr().map_or_else(|_| "unknown".into(), name);
    let greeted = tokio::select! {
        greeted = greeting::greet(&mut stream, &shared.keys) => greeted,
        () = pending.evicted() => Err("closed in favour of a newer connection before its handshake was done".into()),
    };
    match greeted {
        Ok(mut greeted) => match pending.admit(greeted.role) {
            Ok(permit) => match shared.tenure.as_ref().and_then(Tenure::refusal) {
                Some(reason) => {
                    greeting::turn_away(&mut stream, &mut greeted, &reason).await;
                    drain(stream).await;
                }
                None => talk(stream, conn, peer, greeted, permit, &shared).await,
            },
            Err(Denied::Evicted) => {}
            Err(Denied::Full(reason)) => {
                shared.log.line(&format!("{peer}: refused: {reason}"));
                greeting::refuse(&mut stream, &mut greeted, reason).await;
            }
        },
        Err(reason) => shared.log.stranger(&format!("{peer}: {reason}")),
    }
}

/// Returns the name of a peer in the log: an IPv4 address also if the daemon listens on `[::]`.
fn name(peer: SocketAddr) -> String {
    SocketAddr::new(peer.ip().to_canonical(), peer.port()).to_string()
}

/// Passes messages between the core and a peer that has proved that it has the key.
async fn talk(
    stream: TcpStream,
    conn: ConnId,
    peer: String,
    greeted: Greeted,
    _permit: Permit,
    shared: &Shared,
) {
    let core = &shared.core;
    if let Err(error) = set_up(&stream) {
        return shared.log.line(&format!("{peer}: {error}"));
    }
    let Greeted { sealer, opener, role, user, former, hello, rest } = greeted;
    if former {
        shared.log.line(&format!("{peer}: connected with the former cluster key"));
    }
    let (outbox, queue, gate) = Outbox::new();
    if core.send(Incoming::Opened { conn, peer, user, outbox }).await.is_err() {
        return;
    }
    let inbox = Inbox { conn, role, core, queue: &queue, gate, in_hand: Arc::new(Semaphore::new(IN_HAND)) };
    let (mut read_half, mut write_half) = stream.into_split();
    let ended = tokio::select! {
        reason = read(&mut read_half, opener, hello, rest, inbox) => Err(reason),
        written = write(&mut write_half, sealer, conn, core, &queue) => written,
    };
    match ended {
        Ok(()) => linger(read_half, write_half).await,
        Err(reason) => {
            let _ = core.send(Incoming::Closed { conn, reason }).await;
        }
    }
}

/// Makes the kernel find a peer whose host does not answer: within half a minute if nothing waits to be sent,
/// and otherwise when its retransmissions end. There is no `TCP_USER_TIMEOUT`: Linux counts all time in which
/// a peer has less room than the next packet needs, and would end the connection of a peer that receives
/// slowly but steadily. A node that is silent loses its lease, and [`STALL`] limits a peer that receives
/// nothing.
fn set_up(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_notsent_lowat(UNSENT)
}

/// The receiver of a peer's messages.
struct Inbox<'a> {
    conn: ConnId,
    role: Role,
    core: &'a mpsc::Sender<Incoming>,
    queue: &'a Queue,
    gate: watch::Receiver<bool>,
    in_hand: Arc<Semaphore>,
}

impl Inbox<'_> {
    /// Passes a message to the core. Waits while many messages of this peer wait for the core, or while a
    /// client does not receive its replies: then the client's messages are not received either. Never returns
    /// once the core is gone; then the writer ends the connection.
    async fn pass(&self, bytes: Vec<u8>) {
        if self.role == Role::Client {
            self.queue.drained(CLIENT_AHEAD).await;
        }
        if let Ok(in_hand) = self.in_hand.clone().acquire_owned().await
            && self.core.send(Incoming::Received { conn: self.conn, bytes, in_hand }).await.is_ok()
        {
            return;
        }
        std::future::pending::<()>().await;
    }
}

/// Reads messages until the connection ends, and returns the reason.
async fn read(
    stream: &mut OwnedReadHalf,
    mut opener: Opener,
    hello: Vec<u8>,
    mut buffer: Vec<u8>,
    mut inbox: Inbox<'_>,
) -> String {
    inbox.pass(hello).await;
    loop {
        let mut bytes = &buffer[..];
        loop {
            match opener.open(&mut bytes) {
                Ok(Some(message)) => inbox.pass(message).await,
                Ok(None) => break,
                Err(error) => return error.to_string(),
            }
        }
        if inbox.gate.wait_for(|&open| open).await.is_err() {
            // The core has closed the connection. The writer ends it once its queue is empty.
            std::future::pending::<()>().await;
        }
        // A connection that waits has no buffer: there may be thousands of them.
        drop(std::mem::take(&mut buffer));
        buffer = match read_some(stream).await {
            Ok(bytes) if bytes.is_empty() => return "connection lost".into(),
            Ok(bytes) => bytes,
            Err(error) => return format!("connection lost: {error}"),
        };
        give_way(buffer.len()).await;
    }
}

/// Lets the other connections go first after many bytes. A job's bytes would otherwise keep a thread of the
/// runtime for a megabyte or more, and heartbeats would wait for that.
async fn give_way(bytes: usize) {
    if bytes >= MANY {
        yield_now().await;
    }
}

/// Waits for bytes and reads up to [`READ`] of them; none at the end of the stream.
async fn read_some(stream: &OwnedReadHalf) -> io::Result<Vec<u8>> {
    loop {
        stream.readable().await?;
        let mut bytes = vec![0; READ];
        match stream.try_read(&mut bytes) {
            Ok(count) => {
                bytes.truncate(count);
                return Ok(bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes messages until the core closes the connection (`Ok`) or it fails.
async fn write(
    stream: &mut OwnedWriteHalf,
    mut sealer: Sealer,
    conn: ConnId,
    core: &mpsc::Sender<Incoming>,
    queue: &Queue,
) -> Result<(), String> {
    while let Some(messages) = queue.take(BATCH).await {
        let mut sealed = Vec::new();
        for message in &messages {
            sealer.seal(&message.encode(), &mut sealed).map_err(|error| error.to_string())?;
        }
        write_all(stream, &sealed, STALL).await?;
        give_way(sealed.len()).await;
        let bulk = messages.iter().map(|message| message.bulk()).sum();
        if bulk > 0 {
            // Queued messages are sent even if the core is gone.
            let _ = core.send(Incoming::Sent { conn, bulk }).await;
        }
    }
    Ok(())
}

/// Writes all of `bytes`. The timeout starts again with each byte that is accepted.
async fn write_all(
    stream: &mut (impl AsyncWrite + Unpin),
    mut bytes: &[u8],
    limit: Duration,
) -> Result<(), String> {
    while !bytes.is_empty() {
        match timeout(limit, stream.write(bytes)).await {
            Ok(Ok(0)) => return Err("connection lost".into()),
            Ok(Ok(count)) => bytes = bytes.get(count..).unwrap_or_default(),
            Ok(Err(error)) => return Err(format!("connection lost: {error}")),
            Err(_) => return Err("the peer receives no data".into()),
        }
    }
    Ok(())
}

/// Closes a connection as [`linger`] does.
async fn drain(stream: TcpStream) {
    let (read_half, write_half) = stream.into_split();
    linger(read_half, write_half).await;
}

/// Closes so that the peer receives all that was sent: bytes that it still sends are read and dropped.
/// Otherwise the close would be a reset, which may overtake the last message.
async fn linger(mut read_half: OwnedReadHalf, mut write_half: OwnedWriteHalf) {
    let _ = timeout(LINGER, async {
        write_half.shutdown().await?;
        let mut sink = vec![0; READ];
        while read_half.read(&mut sink).await? > 0 {}
        io::Result::Ok(())
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};
    use tokio::time::{Instant, Sleep, sleep};

    /// A writer that accepts one byte per interval.
    struct Slow {
        each: Duration,
        wait: Pin<Box<Sleep>>,
    }

    impl Slow {
        fn new(each: Duration) -> Self {
            Self { each, wait: Box::pin(sleep(each)) }
        }
    }

    impl AsyncWrite for Slow {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            ready!(self.wait.as_mut().poll(cx));
            let next = Instant::now() + self.each;
            self.wait.as_mut().reset(next);
            Poll::Ready(Ok(1))
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn a_peer_by_ipv4_has_its_usual_name() {
        let name_of = |text: &str| name(text.parse().unwrap());
        assert_eq!(name_of("[::ffff:10.0.2.60]:7"), "10.0.2.60:7");
        assert_eq!(name_of("[fd00::1]:7"), "[fd00::1]:7");
    }

    #[tokio::test]
    async fn the_timeout_starts_again_with_each_byte() {
        const TIMEOUT: Duration = Duration::from_millis(500);
        // The whole write takes four times the timeout. A late wake-up of this process does not matter: a
        // byte that has been accepted counts before the time does.
        let slow = write_all(&mut Slow::new(TIMEOUT * 2 / 5), &[0; 10], TIMEOUT).await;
        assert_eq!(slow, Ok(()));
        let stuck = write_all(&mut Slow::new(TIMEOUT * 1000), &[0; 10], TIMEOUT).await;
        assert_eq!(stuck, Err("the peer receives no data".into()));
    }
}
