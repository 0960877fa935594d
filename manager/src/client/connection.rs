//! A control connection over a TCP stream of the standard library, for clients, and for nodes in tests.

use super::{ClientError, REPLY_TIMEOUT};
use proto::channel::{Channel, ClusterKey, Handshake, HandshakeStep, Opener, Role, Sealer, UserKey};
use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The number of bytes to read at once.
const READ: usize = 64 << 10;

/// The longest time that [`Sending::outlast`] can set: Linux counts milliseconds in 31 bits.
const LONGEST: Duration = Duration::from_secs(24 * 86_400);

/// A control connection. Two threads may use its two directions.
#[derive(Debug)]
pub struct Connection {
    /// The direction to the manager.
    pub sending: Sending,
    /// The direction from the manager.
    pub receiving: Receiving,
}

/// The sending half of a control connection.
#[derive(Debug)]
pub struct Sending {
    stream: TcpStream,
    sealer: Sealer,
    sealed: Vec<u8>,
}

/// The direction from the manager.
#[derive(Debug)]
pub struct Receiving {
    stream: TcpStream,
    opener: Opener,
    buffer: Vec<u8>,
    /// The length of the decrypted part of the buffer, in bytes.
    opened: usize,
}

/// Returns the addresses of managers in a list, which commas separate.
#[must_use]
pub fn addresses(list: &str) -> Vec<&str> {
    let all: Vec<&str> = list.split(',').map(str::trim).filter(|address| !address.is_empty()).collect();
    if all.is_empty() { vec![list] } else { all }
}

impl Connection {
    /// Connects to the manager at `address` (`host:port`), and does the handshake in the given role, all
    /// within twice [`REPLY_TIMEOUT`].
    pub fn open(address: &str, key: &ClusterKey, role: Role) -> Result<Self, ClientError> {
        Self::open_within(address, key, role, REPLY_TIMEOUT)
    }

    /// Does the same as [`open`](Self::open), within twice `limit`.
    pub fn open_within(
        address: &str,
        key: &ClusterKey,
        role: Role,
        limit: Duration,
    ) -> Result<Self, ClientError> {
        let key = key.for_role(role)?;
        Self::reach(address, limit, |random| Handshake::initiator(&key, random))
    }

    /// Connects as [`open`](Self::open) does, with the key of a user.
    pub fn open_as(address: &str, key: &UserKey) -> Result<Self, ClientError> {
        Self::open_as_within(address, key, REPLY_TIMEOUT)
    }

    /// Does the same as [`open_as`](Self::open_as), within twice `limit`.
    pub fn open_as_within(address: &str, key: &UserKey, limit: Duration) -> Result<Self, ClientError> {
        Self::reach(address, limit, |random| Handshake::user(key, random))
    }

    fn reach(
        address: &str,
        limit: Duration,
        begin: impl FnOnce([u8; 32]) -> Handshake,
    ) -> Result<Self, ClientError> {
        let bad = |source| ClientError::Address { address: address.into(), source };
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        let deadline = Instant::now() + limit;
        for candidate in address.to_socket_addrs().map_err(bad)? {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&candidate, left) {
                Ok(stream) => return Self::shake(stream, begin(crate::key::random()?), limit),
                Err(error) => last = error,
            }
        }
        Err(ClientError::Unreachable { address: address.into(), source: last })
    }

    fn shake(mut stream: TcpStream, mut side: Handshake, limit: Duration) -> Result<Self, ClientError> {
        stream.set_nodelay(true).map_err(ClientError::Lost)?;
        // Keepalive detects a dead host of the manager also while a job runs and no message is sent.
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(10))
            .with_interval(Duration::from_secs(5))
            .with_retries(3);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive).map_err(ClientError::Lost)?;
        let deadline = Instant::now() + limit;
        let mut buffer = vec![0; READ];
        loop {
            let count = read(&mut stream, &mut buffer, Some((deadline, limit)))?;
            let mut bytes = buffer.get(..count).unwrap_or_default();
            match side.feed(&mut bytes)? {
                HandshakeStep::Continue { reply, next } => {
                    stream.write_all(&reply).map_err(ClientError::Lost)?;
                    side = next;
                }
                HandshakeStep::Done { reply, channel: Channel { sealer, opener, .. } } => {
                    stream.write_all(&reply).map_err(ClientError::Lost)?;
                    let opened = count - bytes.len();
                    buffer.truncate(count);
                    let sending = stream.try_clone().map_err(ClientError::Lost)?;
                    return Ok(Self {
                        sending: Sending { stream: sending, sealer, sealed: Vec::new() },
                        receiving: Receiving { stream, opener, buffer, opened },
                    });
                }
            }
        }
    }
}

impl Sending {
    /// Sends a message. Waits while the manager receives nothing.
    pub fn send<M: Serialize>(&mut self, message: &M) -> Result<(), ClientError> {
        self.send_encoded(&proto::encode(message))
    }

    /// Sends a message that is already encoded.
    pub fn send_encoded(&mut self, message: &[u8]) -> Result<(), ClientError> {
        self.sealed.clear();
        self.sealer.seal(message, &mut self.sealed)?;
        self.stream.write_all(&self.sealed).map_err(ClientError::Lost)
    }

    /// Limits the time that [`send`](Self::send) waits while the manager receives nothing.
    pub fn limit(&self, timeout: Duration) -> Result<(), ClientError> {
        self.stream.set_write_timeout(Some(timeout)).map_err(ClientError::Lost)
    }

    /// Keeps the connection for 24 days while the manager or its host is silent. A [`send`](Self::send) fails
    /// if the manager receives nothing for `silence`, or for 24 days if there is no limit. Otherwise a host
    /// that does not answer is given up after half a minute.
    pub fn outlast(&self, silence: Option<Duration>) -> Result<(), ClientError> {
        self.limit(silence.unwrap_or(LONGEST).clamp(Duration::from_millis(1), LONGEST))?;
        // This overrides the limits of unanswered keepalive probes and of retransmissions (RFC 5482). A
        // shorter time would also end the connection of a manager that receives slowly, but all the time.
        SockRef::from(&self.stream).set_tcp_user_timeout(Some(LONGEST)).map_err(ClientError::Lost)
    }

    /// Ends this direction: the manager receives all that was sent, and then closes the other direction.
    pub fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Ends the connection in both directions. A thread that uses the other half gets an error.
    pub fn hang_up(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Receiving {
    /// Limits the received bytes that wait in the operating system to about `bytes`. Further bytes wait at
    /// the manager.
    pub fn limit_waiting(&self, bytes: usize) -> Result<(), ClientError> {
        SockRef::from(&self.stream).set_recv_buffer_size(bytes).map_err(ClientError::Lost)
    }

    /// Receives the next message, within `timeout` if given, or else until the connection breaks.
    pub fn receive<M: DeserializeOwned>(&mut self, timeout: Option<Duration>) -> Result<M, ClientError> {
        Ok(proto::decode(&self.receive_encoded(timeout)?)?)
    }

    /// Receives the next message as [`receive`](Self::receive) does, but does not decode it.
    pub fn receive_encoded(&mut self, timeout: Option<Duration>) -> Result<Vec<u8>, ClientError> {
        let deadline = timeout.and_then(|timeout| Some((Instant::now().checked_add(timeout)?, timeout)));
        loop {
            let mut bytes = self.buffer.get(self.opened..).unwrap_or_default();
            let message = self.opener.open(&mut bytes)?;
            self.opened = self.buffer.len() - bytes.len();
            if let Some(message) = message {
                return Ok(message);
            }
            self.buffer.resize(READ, 0);
            let read = read(&mut self.stream, &mut self.buffer, deadline);
            self.buffer.truncate(*read.as_ref().unwrap_or(&0));
            self.opened = 0;
            read?;
        }
    }

    /// Ends the connection in both directions. A thread that uses the other half gets an error.
    pub fn hang_up(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Reads at least one byte, until a deadline. The error names the whole time that was allowed.
fn read(
    stream: &mut TcpStream,
    buffer: &mut [u8],
    deadline: Option<(Instant, Duration)>,
) -> Result<usize, ClientError> {
    loop {
        let left =
            deadline.map(|(deadline, allowed)| (deadline.saturating_duration_since(Instant::now()), allowed));
        if let Some((Duration::ZERO, allowed)) = left {
            return Err(ClientError::Silent(allowed));
        }
        stream.set_read_timeout(left.map(|(left, _)| left)).map_err(ClientError::Lost)?;
        match stream.read(buffer) {
            Ok(0) => return Err(ClientError::Lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => return Ok(count),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
                _ => return Err(ClientError::Lost(error)),
            },
        }
    }
}
