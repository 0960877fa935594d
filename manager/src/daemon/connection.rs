//! One connection of the daemon: handshake, reading and writing, each with its deadline.

use crate::core::{ConnId, Message};
use proto::channel::{Channel, ChannelError, ClusterKey, Handshake, HandshakeStep, Opener, Sealer};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::timeout;

/// How long a handshake may take from the first byte to the last.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long a peer may take no byte while there are some for it.
const WRITE: Duration = Duration::from_secs(30);

/// How long to wait for a peer to close after the last message to it.
const LINGER: Duration = Duration::from_secs(2);

/// Bytes of the longest first message.
const MAX_HELLO: usize = 64 << 10;

/// Bytes read at once.
const READ: usize = 64 << 10;

/// Bytes sealed before they are written, about.
const BATCH: usize = 128 << 10;

/// Messages queued to a peer above which it is given up.
const MAX_QUEUED: usize = 16 << 10;

/// What a connection tells the core's task.
#[derive(Debug)]
pub(super) enum Incoming {
    Opened {
        conn: ConnId,
        peer: String,
        outbox: Outbox,
    },
    Received {
        conn: ConnId,
        bytes: Vec<u8>,
    },
    Sent {
        conn: ConnId,
        bulk: usize,
    },
    Closed {
        conn: ConnId,
        reason: String,
    },
    /// A connection that came to nothing.
    Rejected {
        peer: String,
        reason: String,
    },
}

/// Where the core's task puts what a connection shall do.
#[derive(Debug)]
pub(super) struct Outbox {
    messages: mpsc::Sender<Message>,
    reading: watch::Sender<bool>,
}

impl Outbox {
    /// Queues a message; false if the queue is full, and the peer with it.
    pub(super) fn send(&self, message: Message) -> bool {
        !matches!(self.messages.try_send(message), Err(mpsc::error::TrySendError::Full(_)))
    }

    pub(super) fn reading(&self, on: bool) {
        self.reading.send_replace(on);
    }
}

/// Serves a connection until it ends. `handshaking` is given back once the peer has shown that it has the key.
pub(super) async fn serve(
    mut stream: TcpStream,
    conn: ConnId,
    key: Arc<ClusterKey>,
    core: mpsc::Sender<Incoming>,
    handshaking: OwnedSemaphorePermit,
) {
    let peer = stream.peer_addr().map_or_else(|_| "unknown".into(), |address| address.to_string());
    let opened = match timeout(HANDSHAKE, handshake(&mut stream, &key)).await {
        Ok(opened) => opened,
        Err(_) => Err("no handshake in time".into()),
    };
    drop(handshaking);
    let (channel, early) = match opened {
        Ok(opened) => opened,
        Err(reason) => {
            let _ = core.send(Incoming::Rejected { peer, reason }).await;
            return;
        }
    };
    let (messages, queue) = mpsc::channel(MAX_QUEUED);
    let (reading, gate) = watch::channel(true);
    let outbox = Outbox { messages, reading };
    if core.send(Incoming::Opened { conn, peer, outbox }).await.is_err() {
        return;
    }
    let (mut read_half, mut write_half) = stream.into_split();
    let ended = tokio::select! {
        reason = read(&mut read_half, channel.opener, early, conn, &core, gate) => Err(reason),
        written = write(&mut write_half, channel.sealer, conn, &core, queue) => written,
    };
    match ended {
        Ok(()) => linger(read_half, write_half).await,
        Err(reason) => {
            let _ = core.send(Incoming::Closed { conn, reason }).await;
        }
    }
}

/// Answers the peer's handshake; also gives the bytes that came behind it.
async fn handshake(stream: &mut TcpStream, key: &ClusterKey) -> Result<(Channel, Vec<u8>), String> {
    let io = |error: io::Error| error.to_string();
    stream.set_nodelay(true).map_err(io)?;
    let socket = SockRef::from(&*stream);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive).map_err(io)?;
    socket.set_tcp_user_timeout(Some(WRITE)).map_err(io)?;
    let random = crate::key::random().map_err(|error| error.to_string())?;
    let mut side = Handshake::responder(key, random);
    let mut buffer = [0; 256];
    loop {
        let count = stream.read(&mut buffer).await.map_err(io)?;
        if count == 0 {
            return Err("closed during the handshake".into());
        }
        let mut bytes = buffer.get(..count).unwrap_or_default();
        match side.feed(&mut bytes) {
            Ok(HandshakeStep::Continue(next)) => side = next,
            Ok(HandshakeStep::Done { reply, channel }) => {
                stream.write_all(&reply).await.map_err(io)?;
                return Ok((channel, bytes.to_vec()));
            }
            Err(error) => {
                if error == ChannelError::WrongKey {
                    stream.write_all(&Handshake::REFUSAL).await.map_err(io)?;
                }
                return Err(error.to_string());
            }
        }
    }
}

/// Reads messages until the connection ends; gives the reason.
async fn read(
    stream: &mut OwnedReadHalf,
    mut opener: Opener,
    early: Vec<u8>,
    conn: ConnId,
    core: &mpsc::Sender<Incoming>,
    mut gate: watch::Receiver<bool>,
) -> String {
    opener.limit(MAX_HELLO);
    let mut greeted = false;
    let mut buffer = early;
    loop {
        let mut bytes = &buffer[..];
        loop {
            match opener.open(&mut bytes) {
                Ok(Some(bytes)) => {
                    if !greeted {
                        greeted = true;
                        opener.limit(usize::MAX);
                    }
                    if core.send(Incoming::Received { conn, bytes }).await.is_err() {
                        return "the manager stops".into();
                    }
                }
                Ok(None) => break,
                Err(error) => return error.to_string(),
            }
        }
        if gate.wait_for(|&open| open).await.is_err() {
            // The core has closed the connection: the writer ends it once its queue is empty.
            std::future::pending::<()>().await;
        }
        buffer.resize(READ, 0);
        match stream.read(&mut buffer).await {
            Ok(0) => return "connection lost".into(),
            Ok(count) => buffer.truncate(count),
            Err(error) => return format!("connection lost: {error}"),
        }
    }
}

/// Writes messages until the core closes the connection (`Ok`) or it fails.
async fn write(
    stream: &mut OwnedWriteHalf,
    mut sealer: Sealer,
    conn: ConnId,
    core: &mpsc::Sender<Incoming>,
    mut queue: mpsc::Receiver<Message>,
) -> Result<(), String> {
    let mut sealed = Vec::with_capacity(2 * BATCH);
    while let Some(first) = queue.recv().await {
        sealed.clear();
        let mut bulk = 0;
        let mut next = Some(first);
        while let Some(message) = next {
            bulk += message.bulk();
            sealer.seal(&message.encode(), &mut sealed).map_err(|error| error.to_string())?;
            next = if sealed.len() < BATCH { queue.try_recv().ok() } else { None };
        }
        match timeout(WRITE, stream.write_all(&sealed)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(format!("connection lost: {error}")),
            Err(_) => return Err("the peer takes no data".into()),
        }
        if bulk > 0 && core.send(Incoming::Sent { conn, bulk }).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Closes so that the peer gets all that was sent: what it still sends is read and dropped, or the close would be a
/// reset, which may overtake the last message.
async fn linger(mut read_half: OwnedReadHalf, mut write_half: OwnedWriteHalf) {
    let _ = timeout(LINGER, async {
        write_half.shutdown().await?;
        let mut sink = vec![0; READ];
        while read_half.read(&mut sink).await? > 0 {}
        io::Result::Ok(())
    })
    .await;
}
