//! TCP for the few parts that communicate with programs outside of the cluster.
//!
//! Only system applications receive it. `kernel` implements it on the fabric port; tests implement it in
//! memory.

use crate::Instant;
use alloc::boxed::Box;
use core::future::Future;
use core::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use core::pin::Pin;

/// A boxed future of the network.
pub type NetworkFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The reason for which a connection cannot be made or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The port has no address of the other side's family.
    #[error("the port has no address of that family")]
    NoAddress,
    /// The other side refused the connection.
    #[error("connection refused")]
    Refused,
    /// The local port is in use.
    #[error("the port is in use")]
    InUse,
    /// Nothing arrived, or the peer accepted no more data, before the deadline.
    #[error("no answer in time")]
    Deadline,
    /// The connection has ended at one of its sides.
    #[error("connection ended")]
    Closed,
}

/// TCP over IPv4 on one port of the host, and address resolution there.
pub trait Network: Send + Sync {
    /// Connects to `to`. Returns when the peer answers or `deadline` has passed.
    fn connect(
        &self,
        to: SocketAddrV4,
        deadline: Instant,
    ) -> NetworkFuture<'_, Result<Box<dyn Connection>, NetworkError>>;

    /// Listens on a port until the listener is dropped.
    fn listen(&self, port: u16) -> Result<Box<dyn Listener>, NetworkError>;

    /// Resolves the Ethernet address of a neighbour; `None` if there is no answer by `deadline`.
    fn resolve(&self, ip: IpAddr, deadline: Instant) -> NetworkFuture<'_, Option<[u8; 6]>>;
}

/// A TCP port that accepts connections.
pub trait Listener: Send + Sync {
    /// Waits for the next connection, until `deadline`.
    fn accept(&self, deadline: Instant) -> NetworkFuture<'_, Result<Box<dyn Connection>, NetworkError>>;
}

/// A TCP connection. Dropping it sends a reset.
pub trait Connection: Send + Sync {
    /// Returns the address of the other side, or `None` once the connection has ended.
    fn peer(&self) -> Option<Ipv4Addr>;

    /// Waits until bytes have arrived or `deadline` has passed, and reads some of them. Returns their number;
    /// 0 means that the peer has ended its side.
    fn read<'a>(
        &'a self,
        buf: &'a mut [u8],
        deadline: Instant,
    ) -> NetworkFuture<'a, Result<usize, NetworkError>>;

    /// Puts all of `data` into the send buffer by `deadline`. Data that fits into one segment is sent as one.
    fn write<'a>(&'a self, data: &'a [u8], deadline: Instant) -> NetworkFuture<'a, Result<(), NetworkError>>;

    /// Ends this side and waits until the peer has acknowledged all data, or `deadline` has passed.
    fn close<'a>(self: Box<Self>, deadline: Instant) -> NetworkFuture<'a, ()>
    where
        Self: 'a;
}
