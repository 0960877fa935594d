//! TCP/IP on a port: smoltcp, addresses by DHCP, by routers or from the settings, and async TCP connections.
//!
//! [`Stack::poll`] is part of the poller: bounded, without allocation or waiting, also in interrupt context.
//! Lock order: stack, then port.

mod dhcp;
mod ipv6;
mod names;
mod stream;

use alloc::vec;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::net::{IpAddr, SocketAddr};
use core::task::{Poll, Waker};
use platform::{Instant, NetworkError};
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::wire::{EthernetAddress, IpCidr, IpListenEndpoint, Ipv4Cidr};

use super::addressing::{Addressing, Ipv4Addressing, Ipv4Config};
use super::device::{PortDevice, Queries};
use super::port::{Inner as PortInner, Port};
use crate::sync::IrqMutex;
use crate::time;
pub(crate) use names::{Family, NameError};
pub(crate) use stream::TcpStream;

/// Frames that one call of the poller receives, and bursts of segments that it sends.
const INGRESS_BUDGET: usize = 64;
const EGRESS_BUDGET: usize = 64;
/// The longest silence of a peer, also on an idle connection. The connection then ends.
const PEER_TIMEOUT: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(10);
/// The interval of keep-alive segments on an idle connection: short enough that a few losses do not matter.
const KEEP_ALIVE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(2);
/// The first of the dynamic ports (RFC 6335).
const FIRST_PORT: u16 = 49152;

/// The lengths of a connection's buffers, which limit the bytes in flight in each direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    /// The receive window, in bytes.
    pub receive: usize,
    /// The send buffer, in bytes.
    pub send: usize,
}

pub(in crate::net) struct Inner {
    interface: Interface,
    pub(in crate::net) sockets: SocketSet<'static>,
    queries: Queries,
    dhcp: Option<SocketHandle>,
    config: Option<Ipv4Config>,
    /// The further contents of the lease.
    extras: dhcp::Extras,
    /// A second address, in the fabric's network, if the port is the fabric's too.
    second: Option<Ipv4Cidr>,
    ipv6: ipv6::Ipv6,
    config_waiters: Vec<Waker>,
    next_port: u16,
    /// The time at which smoltcp has work next, if no frame arrives before.
    pub(in crate::net) next: Option<Instant>,
}

/// The stack of one port. It is never freed.
pub(crate) struct Stack {
    port: &'static Port,
    pub(in crate::net) inner: IrqMutex<Inner>,
}

fn smol(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(i64::try_from(now.as_nanos() / 1000).unwrap_or(i64::MAX))
}

impl Stack {
    /// Starts the stack on `port`. `seed` makes ports and sequence numbers hard to guess.
    pub(crate) fn start(port: &'static Port, addressing: Addressing, seed: u64) -> Self {
        port.attach_stack();
        let mut queries = Queries::default();
        let now = time::now();
        let mut config = Config::new(EthernetAddress(port.mac().0).into());
        config.random_seed = seed;
        let interface = port.with(|inner| {
            let mut device = device(port, inner, &mut queries, now);
            Interface::new(config, &mut device, smol(now))
        });
        let mut inner = Inner {
            interface,
            sockets: SocketSet::new(Vec::new()),
            queries,
            dhcp: None,
            config: None,
            extras: dhcp::Extras::default(),
            second: None,
            ipv6: ipv6::Ipv6::default(),
            config_waiters: Vec::with_capacity(4),
            next_port: FIRST_PORT + (seed % 16000) as u16,
            next: Some(Instant::ZERO),
        };
        match addressing.ipv4 {
            Ipv4Addressing::Off => {}
            Ipv4Addressing::Static(config) => port.with(|below| inner.configure(below, Some(config))),
            Ipv4Addressing::Dhcp => inner.dhcp = Some(inner.sockets.add(dhcp::client())),
        }
        port.with(|below| inner.start_ipv6(port, below, addressing.ipv6, now));
        let stack = Self { port, inner: IrqMutex::new(inner) };
        stack.poll(now);
        stack
    }

    /// Receives and sends waiting frames, and wakes tasks. Bounded; neither allocates nor waits. Returns
    /// `true` if it did something.
    pub(crate) fn poll(&self, now: Instant) -> bool {
        let mut inner = self.inner.lock();
        self.port.with(|port| inner.poll(self.port, port, now))
    }

    /// Polls as [`poll`](Self::poll) does, for the last words of a processor. Returns `None` if a lock is
    /// held, possibly by this processor.
    fn try_poll(&self, now: Instant) -> Option<bool> {
        let mut inner = self.inner.try_lock()?;
        self.port.try_with(|port| inner.poll(self.port, port, now))
    }

    /// Returns the time at which [`poll`](Self::poll) has work next, if no frame arrives before.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.inner.lock().next
    }

    /// Waits until the port has an IPv4 address. The caller bounds the wait by
    /// [`with_deadline`](super::with_deadline).
    pub(crate) async fn configured(&self) -> Ipv4Config {
        self.wait_for(|inner| inner.config).await
    }

    /// Waits until the port has an address from which it reaches `remote`. The caller bounds the wait.
    pub(crate) async fn configured_for(&self, remote: IpAddr) {
        self.wait_for(|inner| inner.source(remote).ok().map(drop)).await;
    }

    /// Waits for a value that depends on the addresses.
    async fn wait_for<T>(&self, value: impl Fn(&Inner) -> Option<T>) -> T {
        poll_fn(|cx| {
            let mut inner = self.inner.lock();
            match value(&inner) {
                Some(value) => Poll::Ready(value),
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

    /// Returns true if the port has an IPv4 address, or gets one.
    pub(crate) fn uses_ipv4(&self) -> bool {
        let inner = self.inner.lock();
        inner.config.is_some() || inner.dhcp.is_some()
    }

    /// Returns true if the port has an IPv4 address.
    pub(crate) fn has_ipv4(&self) -> bool {
        self.inner.lock().config.is_some()
    }

    /// Returns true if the IPv4 address is by DHCP.
    pub(crate) fn uses_dhcp(&self) -> bool {
        self.inner.lock().dhcp.is_some()
    }

    /// Returns the settings that the DHCP server has passed, or an empty text.
    pub(crate) fn dhcp_settings(&self) -> heapless::Vec<u8, 255> {
        self.inner.lock().extras.settings.clone()
    }

    /// Returns the stack's port.
    pub(crate) fn port(&self) -> &'static Port {
        self.port
    }

    /// Adds a second address, without a router.
    pub(crate) fn add_address(&self, second: Ipv4Config) {
        let mut inner = self.inner.lock();
        inner.second = Some(Ipv4Cidr::new(second.address, second.prefix));
        let first = inner.config.take();
        self.port.with(|port| {
            port.resolver.add_own(second.address.into());
            if first.is_some() {
                inner.configure(port, first);
            }
        });
    }

    /// Connects to `remote`. Returns when the peer answers or `deadline` has passed.
    pub(crate) async fn connect(
        &'static self,
        remote: SocketAddr,
        buffers: Buffers,
        deadline: Instant,
    ) -> Result<TcpStream, NetworkError> {
        let stream = self.open(remote, buffers)?;
        self.poll(time::now());
        let connected = poll_fn(|cx| {
            stream.with(|socket| match socket.state() {
                tcp::State::Established | tcp::State::CloseWait => Poll::Ready(Ok(())),
                tcp::State::Closed | tcp::State::TimeWait => Poll::Ready(Err(NetworkError::Refused)),
                _ => {
                    socket.register_send_waker(cx.waker());
                    socket.register_recv_waker(cx.waker());
                    Poll::Pending
                }
            })
        });
        super::with_deadline(deadline, connected).await.unwrap_or(Err(NetworkError::Deadline))?;
        Ok(stream)
    }

    fn open(&'static self, remote: SocketAddr, buffers: Buffers) -> Result<TcpStream, NetworkError> {
        let mut socket = socket(buffers);
        let mut inner = self.inner.lock();
        let addr = inner.source(remote.ip())?;
        let local = IpListenEndpoint { addr, port: inner.next_port };
        inner.next_port = local.port.checked_add(1).unwrap_or(FIRST_PORT);
        let Inner { interface, sockets, next, .. } = &mut *inner;
        socket.connect(interface.context(), remote, local).map_err(|_| NetworkError::NoAddress)?;
        let handle = sockets.add(socket);
        *next = Some(Instant::ZERO);
        Ok(TcpStream { stack: self, handle })
    }
}

/// Returns a socket with this stack's settings.
pub(in crate::net) fn socket(buffers: Buffers) -> tcp::Socket<'static> {
    let mut socket = tcp::Socket::new(
        tcp::SocketBuffer::new(vec![0; buffers.receive]),
        tcp::SocketBuffer::new(vec![0; buffers.send]),
    );
    socket.set_nagle_enabled(false);
    socket.set_timeout(Some(PEER_TIMEOUT));
    socket.set_keep_alive(Some(KEEP_ALIVE));
    socket
}

fn device<'a>(
    port: &Port,
    inner: &'a mut PortInner,
    queries: &'a mut Queries,
    now: Instant,
) -> PortDevice<'a> {
    PortDevice { inner, queries, now, mac: port.mac(), mtu: port.mtu(), rnic: port.has_rnic() }
}

impl Inner {
    fn poll(&mut self, port: &Port, below: &mut PortInner, now: Instant) -> bool {
        // Frames come first: one of them may be the answer for which smoltcp waits.
        let frames = below.has_host_frame(now, port.has_rnic());
        self.poll_ipv6(below);
        let due = self.next.is_some_and(|at| at <= now) || self.queries.has_answer(below, now);
        if !due && !frames {
            return below.service(now);
        }
        let at = smol(now);
        let mut device = device(port, below, &mut self.queries, now);
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
        self.poll_dhcp(below);
        let next = self.interface.poll_at(at, &self.sockets);
        self.next = next.map(|at| Instant::from_nanos(u64::try_from(at.total_micros()).unwrap_or(0) * 1000));
        below.device.tx.flush();
        below.service(now);
        true
    }

    fn poll_dhcp(&mut self, below: &mut PortInner) {
        let Some(handle) = self.dhcp else { return };
        if let Some((config, extras)) = dhcp::poll(self.sockets.get_mut(handle)) {
            self.extras = extras;
            self.configure(below, config);
        }
    }

    fn configure(&mut self, below: &mut PortInner, config: Option<Ipv4Config>) {
        if self.config == config {
            return;
        }
        if let Some(old) = self.config {
            below.resolver.remove_own(old.address.into());
        }
        self.config = config;
        if let Some(c) = config {
            below.resolver.add_own(c.address.into());
        }
        self.apply_addresses();
    }

    /// Passes the present addresses and routers to smoltcp, and wakes the tasks that wait for an address.
    fn apply_addresses(&mut self) {
        let first = self.config.map(|config| Ipv4Cidr::new(config.address, config.prefix));
        let (second, ipv6) = (self.second, self.ipv6);
        self.interface.update_ip_addrs(|addresses| {
            addresses.clear();
            for address in first.into_iter().chain(second).map(IpCidr::Ipv4).chain(ipv6.addresses()) {
                // The list was just cleared and has room for four: two of each family.
                let _ = addresses.push(address);
            }
        });
        let routes = self.interface.routes_mut();
        routes.update(|routes| routes.clear());
        // The routes were just removed, and there is room for two.
        if let Some(gateway) = self.config.and_then(|config| config.gateway) {
            let _ = routes.add_default_ipv4_route(gateway);
        }
        if let Some(gateway) = ipv6.gateway() {
            let _ = routes.add_default_ipv6_route(gateway);
        }
        self.next = Some(Instant::ZERO);
        for waker in self.config_waiters.drain(..) {
            waker.wake();
        }
    }
}
