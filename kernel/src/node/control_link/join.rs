//! The join of a node: DHCP, TCP, the handshake of Noise, and the manager's welcome.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::net::SocketAddrV4;
use core::time::Duration;
use platform::{Instant, NetworkError};
use proto::channel::{
    Arithmetic, Channel, ChannelError, ClusterKey, Handshake, HandshakeStep, Role, WrongRole,
};
use proto::{Hello, Join, ToNode, Welcome};
use zeroize::Zeroizing;

use super::{Incoming, LinkPoller, ManagerLink, RecvError};
use crate::arch::cpu;
use crate::net::stack::{Buffers, Stack, TcpStream};
use crate::{chart, exec, net, random, time};

/// The deadline of a join, counted from its start.
const JOIN_DEADLINE: Duration = Duration::from_secs(5);
/// The pause between two attempts to connect to a manager that refuses the connection.
const RETRY: Duration = Duration::from_millis(100);

/// The reason for which a node could not join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JoinError {
    /// The manager cannot be reached.
    NoManager(SocketAddrV4, NetworkError),
    /// The manager has another cluster key, or the answering process is not a manager.
    Channel(SocketAddrV4, ChannelError),
    /// The manager refuses the node.
    Refused(String),
    /// The manager's answer is malformed.
    Malformed,
    /// The key belongs to another role than a node's.
    Key(WrongRole),
    /// There is no good randomness for keys.
    NoRandomness,
}

impl core::fmt::Display for JoinError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoManager(at, why) => write!(f, "no manager at {at}: {why}"),
            Self::Channel(at, ChannelError::WrongKey) => {
                write!(f, "wrong cluster key: the manager at {at} has another")
            }
            Self::Channel(at, why) => write!(f, "manager at {at}: {why}"),
            Self::Refused(reason) => write!(f, "the manager refuses: {reason}"),
            Self::Malformed => f.write_str("the manager's answer to the join cannot be read"),
            Self::Key(why) => write!(f, "{why}"),
            Self::NoRandomness => {
                f.write_str("no source of randomness for keys (RDRAND, RDSEED or virtio-rng)")
            }
        }
    }
}

/// Joins the cluster of the manager at `manager`. On success the connection is up and sends heartbeats by
/// itself. It outlasts a manager that is silent for at most `silence` beyond the lease.
///
/// # Errors
/// A [`JoinError`], within five seconds.
pub(crate) async fn join(
    stack: &'static Stack,
    manager: SocketAddrV4,
    key: &ClusterKey,
    buffers: Buffers,
    silence: Option<Duration>,
    join: impl FnOnce() -> Join,
) -> Result<(Arc<ManagerLink>, Welcome), JoinError> {
    if !random::is_seeded() {
        return Err(JoinError::NoRandomness);
    }
    // Before the first await: a task that computes later must not delay the adoption of the poller.
    LinkPoller::register();
    let deadline = time::now() + JOIN_DEADLINE;
    let no_manager = |e| JoinError::NoManager(manager, e);
    // The key pair is computed while DHCP runs, because that takes the longest time of all steps.
    let mut fresh = Zeroizing::new([0; 32]);
    random::fill(&mut *fresh);
    let key = key.for_role(Role::Node).map_err(JoinError::Key)?;
    let start = Handshake::initiator_with(&key, *fresh, arithmetic());
    drop(fresh);
    if net::with_deadline(deadline, stack.configured()).await.is_none() {
        return Err(no_manager(NetworkError::NoAddress));
    }
    chart::mark("address");
    let stream = loop {
        match stack.connect(manager, buffers, deadline).await {
            Err(NetworkError::Refused) if time::now() + RETRY < deadline => exec::sleep(RETRY).await,
            done => break done.map_err(no_manager)?,
        }
    };
    chart::mark("tcp");
    let channel_error = |e| JoinError::Channel(manager, e);
    let (Channel { mut sealer, opener, .. }, rest) =
        match net::with_deadline(deadline, handshake(&stream, start, deadline)).await {
            None => return Err(no_manager(NetworkError::Deadline)),
            Some(Err(RecvError::Tcp(e))) => return Err(no_manager(e)),
            Some(Err(RecvError::Channel(e))) => return Err(channel_error(e)),
            Some(Ok(done)) => done,
        };
    chart::mark("noise");
    let mut sealed = Vec::new();
    let asked = time::now();
    sealer.seal(&proto::encode(&Hello::Node(join())), &mut sealed).map_err(channel_error)?;
    stream.write_all(&sealed, deadline).await.map_err(no_manager)?;
    let mut incoming = Incoming::new(opener, rest);
    let answer = net::with_deadline(deadline, poll_fn(|cx| incoming.poll(&stream, cx))).await;
    let answer = match answer {
        None => return Err(no_manager(NetworkError::Deadline)),
        Some(Err(RecvError::Tcp(e))) => return Err(no_manager(e)),
        Some(Err(RecvError::Channel(e))) => return Err(channel_error(e)),
        Some(Ok(message)) => message,
    };
    let welcome = match proto::decode::<ToNode>(&answer) {
        Ok(ToNode::Welcome(welcome)) => welcome,
        Ok(ToNode::Refused { reason }) => return Err(JoinError::Refused(reason)),
        _ => return Err(JoinError::Malformed),
    };
    chart::mark("join");
    let lease = Duration::from_millis(welcome.lease_ms.into());
    stream.outlast(silence.map(|silence| silence + lease));
    Ok((ManagerLink::install(stream, incoming, sealer, (asked, lease)), welcome))
}

/// Returns the fastest implementation of the cipher on this processor: `selftest=speed` measures both.
fn arithmetic() -> Arithmetic {
    if cpu::is_tcg() { Arithmetic::Scalars } else { Arithmetic::Vectors }
}

/// Performs the Noise handshake. Also returns the bytes that arrived behind it.
async fn handshake(
    stream: &TcpStream,
    mut state: Handshake,
    deadline: Instant,
) -> Result<(Channel, Vec<u8>), RecvError> {
    let mut buf = vec![0; 256];
    loop {
        let n = stream.read(&mut buf, deadline).await.map_err(RecvError::Tcp)?;
        if n == 0 {
            return Err(RecvError::Tcp(NetworkError::Closed));
        }
        let mut bytes = buf.get(..n).unwrap_or_default();
        match state.feed(&mut bytes).map_err(RecvError::Channel)? {
            HandshakeStep::Continue { reply, next } => {
                stream.write_all(&reply, deadline).await.map_err(RecvError::Tcp)?;
                state = next;
            }
            HandshakeStep::Done { reply, channel } => {
                stream.write_all(&reply, deadline).await.map_err(RecvError::Tcp)?;
                return Ok((channel, bytes.to_vec()));
            }
        }
    }
}
