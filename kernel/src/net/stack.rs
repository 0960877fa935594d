//! TCP/IPv4 on the management port: smoltcp, an address by DHCP or from the command line, and async TCP connections.
//!
//! [`Stack::poll`] is part of the poller: bounded, without allocation or waiting, also in interrupt context. Lock
//! order: stack, then port.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::future::poll_fn;
use core::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use platform::Instant;
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::{dhcpv4, tcp};
use smoltcp::wire::{EthernetAddress, IpCidr, Ipv4Cidr};

use super::device::{Asked, PortDevice};
use super::port::{Inner as PortInner, Port};
use crate::sync::IrqMutex;
use crate::time;

/// Frames that one call of the poller takes in, and bursts of segments that it sends.
const INGRESS_BUDGET: usize = 64;
const EGRESS_BUDGET: usize = 64;
/// The peer is gone when it has not acknowledged anything for this long.
const PEER_TIMEOUT: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(10);
/// First of the dynamic ports (RFC 6335).
const FIRST_PORT: u16 = 49152;

/// How the port gets its IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// By DHCP.
    Dhcp,
    /// As given.
    Static(Ipv4Config),
}

/// An IPv4 address and the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Config {
    /// The address.
    pub address: Ipv4Addr,
    /// Bits of the network's prefix.
    pub prefix: u8,
    /// The router, if there is one.
    pub gateway: Option<Ipv4Addr>,
}

/// Why a connection cannot be had or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpError {
    /// Nobody has given this port an address.
    NoAddress,
    /// The other side refuses.
    Refused,
    /// Nobody has answered in time.
    Deadline,
    /// The connection has ended.
    Closed,
}

impl fmt::Display for TcpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoAddress => "the management port has no IPv4 address",
            Self::Refused => "connection refused",
            Self::Deadline => "no answer in time",
            Self::Closed => "connection ended",
        })
    }
}

/// Bytes of a connection's buffers: what may be under way to this node, and from it.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// Receive window.
    pub receive: usize,
    /// Send buffer.
    pub send: usize,
}

struct Inner {
    interface: Interface,
    sockets: SocketSet<'static>,
    asked: Asked,
    dhcp: Option<SocketHandle>,
    config: Option<Ipv4Config>,
    config_waiters: Vec<Waker>,
    next_port: u16,
    /// When smoltcp has something to do, frames aside.
    next: Option<Instant>,
}

/// The stack of one port. It lives as long as the kernel.
pub struct Stack {
    port: &'static Port,
    inner: IrqMutex<Inner>,
}

fn smol(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(i64::try_from(now.as_nanos() / 1000).unwrap_or(i64::MAX))
}

impl Stack {
    /// Starts on `port`; `seed` makes ports and sequence numbers hard to guess.
    pub fn start(port: &'static Port, addressing: Addressing, seed: u64) -> Self {
        port.attach_stack();
        let mut asked = Asked::default();
        let now = time::now();
        let mut config = Config::new(EthernetAddress(port.mac().0).into());
        config.random_seed = seed;
        let interface = port.with(|inner| {
            let mut device = device(port, inner, &mut asked, now);
            Interface::new(config, &mut device, smol(now))
        });
        let mut inner = Inner {
            interface,
            sockets: SocketSet::new(Vec::new()),
            asked,
            dhcp: None,
            config: None,
            config_waiters: Vec::with_capacity(4),
            next_port: FIRST_PORT + (seed % 16000) as u16,
            next: Some(Instant::ZERO),
        };
        match addressing {
            Addressing::Static(config) => inner.configure(port, Some(config)),
            Addressing::Dhcp => {
                let mut socket = dhcpv4::Socket::new();
                let mut retry = socket.get_retry_config();
                retry.discover_timeout = smoltcp::time::Duration::from_secs(1);
                retry.initial_request_timeout = smoltcp::time::Duration::from_secs(1);
                socket.set_retry_config(retry);
                inner.dhcp = Some(inner.sockets.add(socket));
            }
        }
        let stack = Self { port, inner: IrqMutex::new(inner) };
        stack.poll(now);
        stack
    }

    /// The port below.
    pub fn port(&self) -> &'static Port {
        self.port
    }

    /// Takes in and sends what there is, and wakes tasks. Bounded; neither allocates nor waits. `true`: it did
    /// something.
    pub fn poll(&self, now: Instant) -> bool {
        let mut inner = self.inner.lock();
        self.port.with(|port| inner.poll(self.port, port, now))
    }

    /// As [`poll`](Self::poll), for the last words of a processor that may hold the locks. `None`: it does.
    fn try_poll(&self, now: Instant) -> Option<bool> {
        let mut inner = self.inner.try_lock()?;
        self.port.try_with(|port| inner.poll(self.port, port, now))
    }

    /// When [`poll`](Self::poll) has something to do, frames aside.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.inner.lock().next
    }

    /// The IPv4 address in use.
    pub fn config(&self) -> Option<Ipv4Config> {
        self.inner.lock().config
    }

    /// Waits until the port has an address; `None` if it has none by `deadline`. The caller bounds the wait: see
    /// [`with_deadline`](super::with_deadline).
    pub async fn configured(&self) -> Ipv4Config {
        poll_fn(|cx| {
            let mut inner = self.inner.lock();
            match inner.config {
                Some(config) => Poll::Ready(config),
                None => {
                    if !inner.config_waiters.iter().any(|w| w.will_wake(cx.waker())) {
                        inner.config_waiters.push(cx.waker().clone());
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Connects to `remote`. Ends when the peer answers or `deadline` has passed.
    pub async fn connect(
        &'static self,
        remote: SocketAddrV4,
        buffers: Buffers,
        deadline: Instant,
    ) -> Result<TcpStream, TcpError> {
        let stream = self.open(remote, buffers)?;
        self.poll(time::now());
        let connected = poll_fn(|cx| {
            stream.with(|socket| match socket.state() {
                tcp::State::Established | tcp::State::CloseWait => Poll::Ready(Ok(())),
                tcp::State::Closed | tcp::State::TimeWait => Poll::Ready(Err(TcpError::Refused)),
                _ => {
                    socket.register_send_waker(cx.waker());
                    socket.register_recv_waker(cx.waker());
                    Poll::Pending
                }
            })
        });
        super::with_deadline(deadline, connected).await.unwrap_or(Err(TcpError::Deadline))?;
        Ok(stream)
    }

    fn open(&'static self, remote: SocketAddrV4, buffers: Buffers) -> Result<TcpStream, TcpError> {
        let mut socket = tcp::Socket::new(
            tcp::SocketBuffer::new(vec![0; buffers.receive]),
            tcp::SocketBuffer::new(vec![0; buffers.send]),
        );
        socket.set_nagle_enabled(false);
        socket.set_timeout(Some(PEER_TIMEOUT));
        let mut inner = self.inner.lock();
        if inner.config.is_none() {
            return Err(TcpError::NoAddress);
        }
        let local = inner.next_port;
        inner.next_port = local.checked_add(1).unwrap_or(FIRST_PORT);
        let Inner { interface, sockets, next, .. } = &mut *inner;
        let endpoint = (IpAddr::V4(*remote.ip()), remote.port());
        socket.connect(interface.context(), endpoint, local).map_err(|_| TcpError::NoAddress)?;
        let handle = sockets.add(socket);
        *next = Some(Instant::ZERO);
        Ok(TcpStream { stack: self, handle })
    }
}

fn device<'a>(port: &Port, inner: &'a mut PortInner, asked: &'a mut Asked, now: Instant) -> PortDevice<'a> {
    PortDevice { inner, asked, now, mac: port.mac(), mtu: port.mtu(), rnic: port.has_rnic() }
}

impl Inner {
    fn poll(&mut self, port: &Port, below: &mut PortInner, now: Instant) -> bool {
        let due = self.next.is_some_and(|at| at <= now) || self.asked.has_answer(below, now);
        if !due && !below.has_host_frame(now, port.has_rnic()) {
            return below.service(now);
        }
        let at = smol(now);
        let mut device = device(port, below, &mut self.asked, now);
        self.interface.poll_maintenance(at);
        for _ in 0..INGRESS_BUDGET {
            match self.interface.poll_ingress_single(at, &mut device, &mut self.sockets) {
                PollIngressSingleResult::None => break,
                PollIngressSingleResult::PacketProcessed | PollIngressSingleResult::SocketStateChanged => {}
            }
        }
        for _ in 0..EGRESS_BUDGET {
            match self.interface.poll_egress(at, &mut device, &mut self.sockets) {
                PollResult::None => break,
                PollResult::SocketStateChanged => {}
            }
        }
        self.poll_dhcp(port);
        let next = self.interface.poll_at(at, &self.sockets);
        self.next = next.map(|at| Instant::from_nanos(u64::try_from(at.total_micros()).unwrap_or(0) * 1000));
        below.flush(now);
        true
    }

    fn poll_dhcp(&mut self, port: &Port) {
        let Some(handle) = self.dhcp else { return };
        let config = match self.sockets.get_mut::<dhcpv4::Socket<'_>>(handle).poll() {
            None => return,
            Some(dhcpv4::Event::Deconfigured) => None,
            Some(dhcpv4::Event::Configured(c)) => Some(Ipv4Config {
                address: c.address.address(),
                prefix: c.address.prefix_len(),
                gateway: c.router,
            }),
        };
        self.configure(port, config);
    }

    fn configure(&mut self, port: &Port, config: Option<Ipv4Config>) {
        if self.config == config {
            return;
        }
        if let Some(old) = self.config {
            port.remove_address_locked(old.address.into());
        }
        self.config = config;
        self.interface.update_ip_addrs(Vec_clear);
    }
}
