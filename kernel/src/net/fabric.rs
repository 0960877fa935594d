//! [`platform::Network`] on the fabric port: TCP at the RNIC's address there, or at another.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use platform::{Connection, Instant, Listener, Network, NetworkError, NetworkFuture};
use verbs::Rnic;

use super::Net;
use super::addressing::Ipv4Config;
use super::listen::TcpListener;
use super::port::Port;
use super::stack::{Buffers, Stack, TcpStream};

/// Buffers for exchanges of short messages.
const BUFFERS: Buffers = Buffers { receive: 64 << 10, send: 64 << 10 };

/// TCP on an Ethernet port. The port's TCP stack is created at the first use, because an unused stack would
/// cost memory.
pub(crate) struct FabricNetwork {
    net: &'static Net,
    port: &'static Port,
    at: At,
    prefix: u8,
}

/// The IPv4 address of TCP.
pub(crate) enum At {
    /// The address of an RNIC, which may not have it yet.
    Rnic(Arc<dyn Rnic>),
    /// The address configured for the port itself.
    Own(Ipv4Addr),
}

impl FabricNetwork {
    /// Returns TCP on `port` of `net`, in a network with `prefix` bits of prefix, all of which is on the
    /// fabric.
    pub(crate) fn new(net: &'static Net, port: &'static Port, at: At, prefix: u8) -> Self {
        Self { net, port, at, prefix }
    }

    fn stack(&self) -> Result<&'static Stack, NetworkError> {
        let address = match &self.at {
            At::Rnic(rnic) => rnic.attributes().port.gid.ipv4().map(Ipv4Addr::from),
            At::Own(address) => Some(*address),
        };
        let address = address.ok_or(NetworkError::NoAddress)?;
        Ok(self.net.fabric_stack(self.port, Ipv4Config { address, prefix: self.prefix, gateway: None }))
    }
}

impl Network for FabricNetwork {
    fn connect(
        &self,
        to: SocketAddrV4,
        deadline: Instant,
    ) -> NetworkFuture<'_, Result<Box<dyn Connection>, NetworkError>> {
        Box::pin(async move {
            let stream = self.stack()?.connect(to.into(), BUFFERS, deadline).await?;
            Ok(Box::new(stream) as Box<dyn Connection>)
        })
    }

    fn listen(&self, port: u16) -> Result<Box<dyn Listener>, NetworkError> {
        Ok(Box::new(self.stack()?.listen(port, BUFFERS)?))
    }

    fn resolve(&self, ip: IpAddr, deadline: Instant) -> NetworkFuture<'_, Option<[u8; 6]>> {
        Box::pin(async move { self.port.resolve(ip, deadline).await.map(|mac| mac.0) })
    }
}

impl Listener for TcpListener {
    fn accept(&self, deadline: Instant) -> NetworkFuture<'_, Result<Box<dyn Connection>, NetworkError>> {
        Box::pin(async move { Ok(Box::new(Self::accept(self, deadline).await?) as Box<dyn Connection>) })
    }
}

impl Connection for TcpStream {
    fn peer(&self) -> Option<Ipv4Addr> {
        Self::peer(self)
    }

    fn read<'a>(
        &'a self,
        buf: &'a mut [u8],
        deadline: Instant,
    ) -> NetworkFuture<'a, Result<usize, NetworkError>> {
        Box::pin(Self::read(self, buf, deadline))
    }

    fn write<'a>(&'a self, data: &'a [u8], deadline: Instant) -> NetworkFuture<'a, Result<(), NetworkError>> {
        Box::pin(self.write_all(data, deadline))
    }

    fn close<'a>(self: Box<Self>, deadline: Instant) -> NetworkFuture<'a, ()> {
        Box::pin(Self::close(*self, deadline))
    }
}
