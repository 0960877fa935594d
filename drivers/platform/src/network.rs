//! TCP for the few parts that talk to programs outside of the cluster.
//!
//! Only system applications are given it. Implemented by `kernel` on the fabric port, and in memory for tests.

use crate::Instant;
use alloc::boxed::Box;
use core::future::Future;
use core::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use core::pin::Pin;

/// A future of the network's, in a box.
pub type NetworkFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why a connection cannot be had or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The port has no IPv4 address.
    #[error("the port has no IPv4 address")]
    NoAddress,
    /// The other side refuses.
    #[error("connection refused")]
    Refused,
    /// The local port is in use.
    #[error("the port is in use")]
    InUse,
    /// Nothing has come, or nobody has taken anything, in time.
    #[error("no answer in time")]
    Deadline,
    /// The connection has ended.
    #[error("connection ended")]
    Closed,
}

/// The host's TCP/IPv4 on one port, and its neighbours there.
pub trait Network: Send + Sync {
    /// Connects to `to`; ends when the peer answers or `deadline` has passed.
    fn connect(
        &self,
        to: SocketAddrV4,
        deadline: Instant,
    ) -> NetworkFuture<'_, Result<Box<dyn Connection>, NetworkError>>;

    /// Listens on a port until the listener is dropped.
    fn listen(&self, port: u16) -> Result<Box<dyn Listener>, NetworkError>;

    /// The Ethernet address of a neighbour, or `None` if nobody has answered by `deadline`.
    fn resolve(&self, ip: IpAddr, deadline: Instant) -> NetworkFuture<'_, Option<[u8; 6]>>;
}

/// Takes connections.
pub trait Listener: Send + Sync {
    /// The next connection.
    fn accept(&self, deadline: Instant) -> NetworkFuture<'_, Result<Box<dyn Connection>, NetworkError>>;
}

/// A TCP connection. Dropped, it is reset.
pub trait Connection: Send + Sync {
    /// The address of the other side; `None` once the connection is no more.
    fn peer(&self) -> Option<Ipv4Addr>;

    /// Some bytes that have come, by `deadline`; 0: the peer has ended its side.
    fn read<'a>(
        &'a self,
        buf: &'a mut [u8],
        deadline: Instant,
    ) -> NetworkFuture<'a, Result<usize, NetworkError>>;

    /// Has all of `data` in the send buffer by `deadline`. What fits a segment goes out as one.
    fn write<'a>(&'a self, data: &'a [u8], deadline: Instant) -> NetworkFuture<'a, Result<(), NetworkError>>;

    /// Ends this side and waits, until `deadline`, that the peer has all that was written.
    fn close<'a>(self: Box<Self>, deadline: Instant) -> NetworkFuture<'a, ()>
    where
        Self: 'a;
}
