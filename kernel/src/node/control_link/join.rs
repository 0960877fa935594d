//! The join of a node: DHCP, TCP, the handshake of Noise, and the manager's welcome.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use bootconfig::{Endpoint, Host, Source, endpoints};
use core::fmt;
use core::future::poll_fn;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use platform::{Instant, NetworkError};
use proto::channel::{
    Arithmetic, Channel, ChannelError, ClusterKey, Handshake, HandshakeStep, Role, Sealer, WrongRole,
};
use proto::{Hello, Join, PROTOCOL_VERSION, Resume, ToNode, Welcome, is_standby, version_after};
use verbs::MacAddr;
use zeroize::Zeroizing;

use super::{Incoming, ManagerLink, RecvError};
use crate::arch::cpu;
use crate::net::stack::{Buffers, Family, NameError, Stack, TcpStream};
use crate::{chart, cmdline, exec, net, random, time};

/// The deadline of an attempt to join, counted from its start.
const JOIN_DEADLINE: Duration = Duration::from_secs(5);
/// The longest time for a connection to one of several addresses.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// The pause between two attempts to connect to a manager that refuses the connection.
const RETRY: Duration = Duration::from_millis(100);

/// The reason for which a manager was not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unreachable {
    /// There is no connection.
    Network(NetworkError),
    /// The manager's name has no address.
    Name(NameError),
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(why) => write!(f, "{why}"),
            Self::Name(why) => write!(f, "{why}"),
        }
    }
}

/// The reason for which a node could not join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JoinError {
    /// The port has no IPv4 address. The flag is true if it is one of DHCP.
    NoAddress(MacAddr, bool),
    /// No source of settings names a manager.
    NoneNamed,
    /// A source of settings names managers that are malformed.
    Named(String),
    /// A source of settings names DNS servers that are malformed.
    NameServers(&'static str),
    /// No manager can be reached.
    NoManager(Vec<(Endpoint, Unreachable)>),
    /// The manager has another cluster key, or the answering process is not a manager.
    Channel(SocketAddr, ChannelError),
    /// The connection to this manager has ended too early, or was silent.
    Ended(SocketAddr, NetworkError),
    /// The manager refuses the node.
    Refused(String),
    /// The manager's answer is malformed.
    Malformed,
    /// The key belongs to another role than a node's.
    Key(WrongRole),
    /// There is no good randomness for keys.
    NoRandomness,
}

impl JoinError {
    /// Returns true if another attempt has the same result, as long as the node is not started again.
    pub(super) const fn is_final(&self) -> bool {
        matches!(self, Self::Key(_) | Self::NoRandomness)
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress(mac, true) => write!(f, "no DHCP server answers on port {mac}; has it a link?"),
            Self::NoAddress(mac, false) => write!(f, "port {mac} has no address"),
            Self::NoneNamed => f.write_str("no manager is known: set manager=ADDRESS:PORT"),
            Self::Named(why) => write!(f, "manager={why}"),
            Self::NameServers(text) => write!(f, "dns={text}: want IP addresses, separated by commas"),
            Self::NoManager(tried) => {
                for (index, (manager, why)) in tried.iter().enumerate() {
                    let before = if index > 0 { "; " } else { "" };
                    write!(f, "{before}no manager at {manager}: {why}")?;
                }
                Ok(())
            }
            Self::Channel(at, ChannelError::WrongKey) => {
                write!(f, "wrong cluster key: the manager at {at} has another")
            }
            Self::Channel(at, why) => write!(f, "manager at {at}: {why}"),
            Self::Ended(at, why) => write!(f, "manager at {at}: {why}"),
            Self::Refused(reason) => write!(f, "the manager refuses: {reason}"),
            Self::Malformed => f.write_str("the manager's answer to the join cannot be read"),
            Self::Key(why) => write!(f, "{why}"),
            Self::NoRandomness => {
                f.write_str("no source of randomness for keys (RDRAND, RDSEED or virtio-rng)")
            }
        }
    }
}

/// An attempt to join.
pub(super) struct Attempt<'a> {
    /// TCP on the management port.
    pub stack: &'static Stack,
    /// The cluster key.
    pub key: &'a ClusterKey,
    /// The lengths of the connection's buffers.
    pub buffers: Buffers,
    /// The longest silence of the manager beyond the lease that the connection outlasts.
    pub silence: Option<Duration>,
}

/// A connection to a manager after the handshake.
struct Opened {
    manager: SocketAddr,
    sealer: Sealer,
    incoming: Incoming,
}

impl Opened {
    /// Sends the first message.
    async fn say(&mut self, hello: &Hello, deadline: Instant) -> Result<(), JoinError> {
        let manager = self.manager;
        let mut sealed = Vec::new();
        self.sealer.seal(&proto::encode(hello), &mut sealed).map_err(|e| JoinError::Channel(manager, e))?;
        self.incoming.stream.write_all(&sealed, deadline).await.map_err(|e| JoinError::Ended(manager, e))
    }

    /// Receives the first message of the manager.
    async fn hear(&mut self, deadline: Instant) -> Result<ToNode, JoinError> {
        let manager = self.manager;
        match net::with_deadline(deadline, poll_fn(|cx| self.incoming.poll(cx))).await {
            None => Err(JoinError::Ended(manager, NetworkError::Deadline)),
            Some(Err(RecvError::Tcp(e))) => Err(JoinError::Ended(manager, e)),
            Some(Err(RecvError::Channel(e))) => Err(JoinError::Channel(manager, e)),
            Some(Ok(message)) => proto::decode(&message).map_err(|_| JoinError::Malformed),
        }
    }
}

impl Attempt<'_> {
    /// Joins the cluster of one of the managers. The `turn`-th of them is tried first. On success the
    /// connection is up and sends heartbeats by itself.
    ///
    /// # Errors
    /// A [`JoinError`], within five seconds.
    pub(super) async fn run(
        &self,
        turn: usize,
        join: &(dyn Fn() -> Join + Sync),
    ) -> Result<(Arc<ManagerLink>, Welcome), JoinError> {
        let deadline = time::now() + JOIN_DEADLINE;
        let mut version = PROTOCOL_VERSION;
        let mut turn = turn;
        let (opened, asked, welcome) = loop {
            let mut opened = self.open(turn, deadline, chart::mark).await?;
            let asked = time::now();
            opened.say(&Hello::Node(Join { version, ..join() }), deadline).await?;
            match opened.hear(deadline).await? {
                ToNode::Welcome(welcome) => break (opened, asked, welcome),
                ToNode::Refused { reason } => match version_after(version, &reason) {
                    Some(lower) => version = lower,
                    // The next manager may lead.
                    None if is_standby(&reason) && time::now() + RETRY < deadline => {
                        turn += 1;
                        exec::sleep(RETRY).await;
                    }
                    None => return Err(JoinError::Refused(reason)),
                },
                _ => return Err(JoinError::Malformed),
            }
        };
        chart::mark("join");
        let lease = Duration::from_millis(welcome.lease_ms.into());
        let Opened { incoming, sealer, .. } = opened;
        incoming.stream.outlast(self.silence.map(|silence| silence + lease));
        Ok((ManagerLink::install(incoming, sealer, asked, (&welcome, version)), welcome))
    }

    /// Tells one of the managers, the `turn`-th first, that this node does not start.
    ///
    /// # Errors
    /// A [`JoinError`], within five seconds.
    pub(super) async fn tell(&self, turn: usize, unfit: &Hello) -> Result<(), JoinError> {
        let deadline = time::now() + JOIN_DEADLINE;
        let mut opened = self.open(turn, deadline, chart::mark).await?;
        opened.say(unfit, deadline).await?;
        match opened.hear(deadline).await {
            // The manager has read the message: it ends the connection without an answer.
            Err(JoinError::Ended(_, NetworkError::Closed)) => Ok(()),
            Err(why) => Err(why),
            Ok(ToNode::Refused { reason }) => Err(JoinError::Refused(reason)),
            Ok(_) => Err(JoinError::Malformed),
        }
    }

    /// Connects to one of the managers, the `turn`-th first, and asks it to resume a membership with that
    /// lease. Returns the connection and the time of the question. The answer is not received yet.
    ///
    /// # Errors
    /// A [`JoinError`], within five seconds.
    pub(super) async fn resume(
        &self,
        turn: usize,
        resume: Resume,
        lease: Duration,
    ) -> Result<(Incoming, Sealer, Instant), JoinError> {
        let deadline = time::now() + JOIN_DEADLINE;
        let mut opened = self.open(turn, deadline, |_| ()).await?;
        let asked = time::now();
        opened.say(&Hello::Resume(resume), deadline).await?;
        let Opened { incoming, sealer, .. } = opened;
        incoming.stream.outlast(self.silence.map(|silence| silence + lease));
        Ok((incoming, sealer, asked))
    }

    /// Connects to one of the managers, the `turn`-th first, and performs the handshake. Calls `mark` after
    /// each step.
    async fn open(
        &self,
        turn: usize,
        deadline: Instant,
        mark: impl Fn(&'static str),
    ) -> Result<Opened, JoinError> {
        if !random::is_seeded() {
            return Err(JoinError::NoRandomness);
        }
        // The key pair is computed while DHCP runs, because that takes the longest time of all steps.
        let mut fresh = Zeroizing::new([0; 32]);
        random::fill(&mut *fresh);
        let key = self.key.for_role(Role::Node).map_err(JoinError::Key)?;
        let start = Handshake::initiator_with(&key, *fresh, arithmetic());
        drop(fresh);
        self.wait_for_ipv4(deadline).await?;
        mark("address");
        let (stream, manager) = self.connect(turn, deadline).await?;
        mark("tcp");
        let (Channel { sealer, opener, .. }, rest) =
            match net::with_deadline(deadline, handshake(&stream, start, deadline)).await {
                None => return Err(JoinError::Ended(manager, NetworkError::Deadline)),
                Some(Err(RecvError::Tcp(e))) => return Err(JoinError::Ended(manager, e)),
                Some(Err(RecvError::Channel(e))) => return Err(JoinError::Channel(manager, e)),
                Some(Ok(done)) => done,
            };
        mark("noise");
        Ok(Opened { manager, sealer, incoming: Incoming::new(Arc::new(stream), opener, rest) })
    }

    /// Waits until the port has an IPv4 address, if a manager may need one. With managers of both families
    /// the wait is short.
    async fn wait_for_ipv4(&self, deadline: Instant) -> Result<(), JoinError> {
        let before_dhcp = [Source::CommandLine, Source::Initrd];
        // A server may name other managers than the sources behind it.
        let is_known = !self.stack.uses_dhcp()
            || before_dhcp.into_iter().any(|source| cmdline::of_source("manager", source).is_some());
        let is_ipv6 = |manager: &Endpoint| matches!(manager.host, Host::Address(IpAddr::V6(_)));
        let (wanted, needed) = match managers() {
            Ok(all) if is_known => (!all.iter().all(is_ipv6), !all.iter().any(is_ipv6)),
            _ => (true, true),
        };
        if !wanted || !self.stack.uses_ipv4() {
            return Ok(());
        }
        let until = if needed { deadline } else { deadline.min(time::now() + CONNECT_DEADLINE) };
        let configured = net::with_deadline(until, self.stack.configured()).await;
        if configured.is_none() && needed {
            return Err(JoinError::NoAddress(self.stack.port().mac(), self.stack.uses_dhcp()));
        }
        Ok(())
    }

    /// Connects to one of the managers, in their order from the `turn`-th on. If all of them refuse the
    /// connection, tries again until `deadline`.
    async fn connect(&self, turn: usize, deadline: Instant) -> Result<(TcpStream, SocketAddr), JoinError> {
        if self.stack.uses_dhcp() {
            cmdline::set_dhcp(&self.stack.dhcp_settings());
        }
        let (mut managers, servers) = (managers()?, dns_servers()?);
        let first = turn % managers.len();
        managers.rotate_left(first);
        let mut refused = None;
        loop {
            let mut tried = Vec::new();
            for manager in &managers {
                match self.connect_to(manager, &servers, deadline).await {
                    Ok(connected) => return Ok(connected),
                    Err(why) => tried.push((manager.clone(), why)),
                }
            }
            let refuses = |why: &Unreachable| *why == Unreachable::Network(NetworkError::Refused);
            let all_refuse = tried.iter().all(|(_, why)| refuses(why));
            let now = time::now();
            if all_refuse && now + RETRY < deadline {
                refused = Some(tried);
                exec::sleep(RETRY).await;
                continue;
            }
            // A round that `deadline` cuts short tells less than the refusals of the round before.
            let before = refused.filter(|_| now >= deadline);
            return Err(JoinError::NoManager(before.unwrap_or(tried)));
        }
    }

    /// Connects to a manager by one of its addresses. A name is resolved by `servers`, or by those of the
    /// lease if there are none: to IPv4 addresses, and to IPv6 addresses if it is not reached by the others.
    async fn connect_to(
        &self,
        manager: &Endpoint,
        servers: &[IpAddr],
        deadline: Instant,
    ) -> Result<(TcpStream, SocketAddr), Unreachable> {
        let name = match &manager.host {
            Host::Address(address) => return self.connect_among(&[*address], manager.port, deadline).await,
            Host::Name(name) => name,
        };
        let families: &[_] =
            if self.stack.has_ipv4() { &[Family::Ipv4, Family::Ipv6] } else { &[Family::Ipv6] };
        let mut failure = Unreachable::Name(NameError::NameUnknown);
        for family in families {
            let why = match self.stack.resolve(name, *family, servers, deadline).await {
                Ok(addresses) => match self.connect_among(&addresses, manager.port, deadline).await {
                    Ok(connected) => return Ok(connected),
                    Err(why) => why,
                },
                Err(why) => Unreachable::Name(why),
            };
            // A connection that failed tells more than a name without addresses of the other family.
            if matches!(failure, Unreachable::Name(_)) {
                failure = why;
            }
        }
        Err(failure)
    }

    /// Connects to one of a manager's addresses.
    async fn connect_among(
        &self,
        addresses: &[IpAddr],
        port: u16,
        deadline: Instant,
    ) -> Result<(TcpStream, SocketAddr), Unreachable> {
        let mut result = Err(Unreachable::Name(NameError::NameUnknown));
        for address in addresses {
            let remote = SocketAddr::new(*address, port);
            let deadline = deadline.min(time::now() + CONNECT_DEADLINE);
            // Without an address, the attempt to connect says so.
            let _ = net::with_deadline(deadline, self.stack.configured_for(*address)).await;
            match self.stack.connect(remote, self.buffers, deadline).await {
                Ok(stream) => return Ok((stream, remote)),
                Err(why) => result = Err(Unreachable::Network(why)),
            }
        }
        result
    }
}

/// Parses `manager=`.
///
/// # Errors
/// If no source of settings has the key, or its value is malformed.
pub(super) fn managers() -> Result<Vec<Endpoint>, JoinError> {
    let text = cmdline::get("manager").ok_or(JoinError::NoneNamed)?;
    endpoints(text).map_err(|why| JoinError::Named(format!("{text}: {why}")))
}

/// Parses `dns=`. Without it, there are no servers.
///
/// # Errors
/// If a part of the value is no address.
pub(super) fn dns_servers() -> Result<Vec<IpAddr>, JoinError> {
    let Some(text) = cmdline::get("dns") else { return Ok(Vec::new()) };
    let servers: Result<_, _> = text.split(',').map(str::parse).collect();
    servers.map_err(|_| JoinError::NameServers(text))
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
