//! The beginning of a connection: the handshake, and the first message, which proves that the peer has the
//! key now.

use proto::channel::{
    Channel, ChannelError, Handshake, HandshakeStep, Opener, Role, RoleKeys, Sealer, UserId,
};
use proto::{Hello, HelloKind, ToClient, ToNode};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time for a handshake from the first byte to the last, and again for the first message.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum length of the first message, in bytes.
const MAX_HELLO: usize = 64 << 10;

/// The number of bytes to read at once.
const READ: usize = 4 << 10;

/// A peer that has proved that it has a key of the cluster.
#[derive(Debug)]
pub(super) struct Greeted {
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
    /// The role that the peer's key allows.
    pub(super) role: Role,
    /// The user, if the peer has a user's key.
    pub(super) user: Option<UserId>,
    /// True if the peer has a key of the former cluster key.
    pub(super) former: bool,
    /// The first message, encoded.
    pub(super) hello: Vec<u8>,
    /// The bytes that came after the first message.
    pub(super) rest: Vec<u8>,
}

/// Does the handshake and receives the first message. The error is a reason for people.
pub(super) async fn greet(stream: &mut TcpStream, keys: &RoleKeys) -> Result<Greeted, String> {
    let shaken = timeout(TIMEOUT, shake(stream, keys)).await;
    let (channel, rest) = shaken.map_err(|_| "no handshake in time")??;
    let greeted = timeout(TIMEOUT, hear(stream, channel, rest)).await;
    let mut greeted = greeted.map_err(|_| "sent no message in time")??;
    if let Some(objection) = objection(&greeted) {
        refuse(stream, &mut greeted, objection).await;
        return Err(objection.into());
    }
    Ok(greeted)
}

/// Tells a peer that has proved its key why its connection ends, if possible.
pub(super) async fn refuse(stream: &mut TcpStream, greeted: &mut Greeted, reason: &str) {
    let message = match Hello::peek_version(&greeted.hello) {
        Some((HelloKind::Node, _)) => proto::encode(&ToNode::Refused { reason: reason.into() }),
        _ => proto::encode(&ToClient::Failed { reason: reason.into() }),
    };
    let mut sealed = Vec::new();
    if greeted.sealer.seal(&message, &mut sealed).is_ok() {
        let _ = timeout(TIMEOUT, stream.write_all(&sealed)).await;
    }
}

/// Tells a peer that this manager does not lead. A member that wants to resume gets no answer, because a
/// refusal would end its membership: it tries the next manager.
pub(super) async fn turn_away(stream: &mut TcpStream, greeted: &mut Greeted, reason: &str) {
    if !Hello::is_resume(&greeted.hello) {
        refuse(stream, greeted, reason).await;
    }
}

/// Returns the reason why a first message does not match the key of its sender. A message that no version of
/// the protocol knows is left to the core.
fn objection(greeted: &Greeted) -> Option<&'static str> {
    match (greeted.role, Hello::peek_version(&greeted.hello)?.0) {
        (Role::Client, HelloKind::Node) => Some("the key of a client does not let a node join"),
        (Role::Node, HelloKind::Client) => Some("the key of a node is not that of a client"),
        (Role::Node, HelloKind::Node) | (Role::Client, HelloKind::Client) => None,
    }
}

/// Does the handshake, and also returns the bytes that came after it.
async fn shake(stream: &mut TcpStream, keys: &RoleKeys) -> Result<(Channel, Vec<u8>), String> {
    let io = |error: io::Error| error.to_string();
    let random = || crate::key::random().map_err(|error| error.to_string());
    stream.set_nodelay(true).map_err(io)?;
    let (mut side, challenge) = Handshake::responder(keys, [random()?, random()?]);
    stream.write_all(&challenge).await.map_err(io)?;
    let mut buffer = [0; 256];
    loop {
        let count = stream.read(&mut buffer).await.map_err(io)?;
        if count == 0 {
            return Err("closed during the handshake".into());
        }
        let mut bytes = buffer.get(..count).unwrap_or_default();
        match side.feed(&mut bytes) {
            Ok(HandshakeStep::Continue { reply, next }) => {
                stream.write_all(&reply).await.map_err(io)?;
                side = next;
            }
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

/// Receives the first message.
async fn hear(stream: &mut TcpStream, channel: Channel, mut buffer: Vec<u8>) -> Result<Greeted, String> {
    let Channel { sealer, mut opener, role, user, former } = channel;
    opener.limit(MAX_HELLO);
    loop {
        let mut bytes = &buffer[..];
        if let Some(hello) = opener.open(&mut bytes).map_err(|error| error.to_string())? {
            opener.limit(usize::MAX);
            return Ok(Greeted { sealer, opener, role, user, former, hello, rest: bytes.to_vec() });
        }
        buffer.resize(READ, 0);
        match stream.read(&mut buffer).await {
            Ok(0) => return Err("connection lost before the first message".into()),
            Ok(count) => buffer.truncate(count),
            Err(error) => return Err(format!("connection lost before the first message: {error}")),
        }
    }
}
