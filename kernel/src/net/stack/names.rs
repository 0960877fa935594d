//! Names of hosts, resolved by DNS.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::future::poll_fn;
use core::net::IpAddr;
use core::task::Poll;
use platform::Instant;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::dns::{GetQueryResultError, Socket};
use smoltcp::wire::{DnsQueryType, IpAddress};

use super::Stack;
use crate::net::with_deadline;
use crate::time;

/// A kind of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// The addresses of A records.
    Ipv4,
    /// The addresses of AAAA records.
    Ipv6,
}

/// The reason for which a name has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameError {
    /// No DNS server is known.
    ServerUnknown,
    /// No DNS server has answered in time.
    Silence,
    /// The name has no address.
    NameUnknown,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ServerUnknown => "no DNS server is known: set dns=",
            Self::Silence => "no DNS server answers",
            Self::NameUnknown => "DNS knows no address of that name",
        })
    }
}

/// A question to DNS servers. Dropping it ends the question.
struct Question {
    stack: &'static Stack,
    socket: SocketHandle,
}

impl Drop for Question {
    fn drop(&mut self) {
        let socket = self.stack.inner.lock().sockets.remove(self.socket);
        // The socket's memory is freed without the lock.
        drop(socket);
    }
}

impl Stack {
    /// Returns the addresses of one family that `name` has. The servers are `servers`, or those of the lease
    /// if it is empty.
    pub(crate) async fn resolve(
        &'static self,
        name: &str,
        family: Family,
        servers: &[IpAddr],
        deadline: Instant,
    ) -> Result<Vec<IpAddr>, NameError> {
        let of_lease = self.inner.lock().extras.dns.clone();
        let of_lease: Vec<_> = of_lease.into_iter().map(IpAddr::V4).collect();
        let servers = if servers.is_empty() { &of_lease[..] } else { servers };
        let servers: Vec<_> = servers.iter().take(3).map(|server| IpAddress::from(*server)).collect();
        if servers.is_empty() {
            return Err(NameError::ServerUnknown);
        }
        let kind = match family {
            Family::Ipv4 => DnsQueryType::A,
            Family::Ipv6 => DnsQueryType::Aaaa,
        };
        self.ask(name, &servers, kind, deadline).await
    }

    /// Asks for the addresses of a record type.
    async fn ask(
        &'static self,
        name: &str,
        servers: &[IpAddress],
        kind: DnsQueryType,
        deadline: Instant,
    ) -> Result<Vec<IpAddr>, NameError> {
        let mut socket = Socket::new(servers, vec![None]);
        let (question, query) = {
            let mut inner = self.inner.lock();
            let query = socket.start_query(inner.interface.context(), name, kind);
            let query = query.map_err(|_| NameError::NameUnknown)?;
            let socket = inner.sockets.add(socket);
            inner.next = Some(Instant::ZERO);
            (Question { stack: self, socket }, query)
        };
        self.poll(time::now());
        let answer = poll_fn(|cx| {
            let mut inner = self.inner.lock();
            let socket = inner.sockets.get_mut::<Socket<'static>>(question.socket);
            match socket.get_query_result(query) {
                Ok(addresses) => Poll::Ready(Ok(addresses)),
                Err(GetQueryResultError::Failed) => Poll::Ready(Err(NameError::NameUnknown)),
                Err(GetQueryResultError::Pending) => {
                    socket.register_query_waker(query, cx.waker());
                    Poll::Pending
                }
            }
        });
        let addresses = with_deadline(deadline, answer).await.unwrap_or(Err(NameError::Silence))?;
        if addresses.is_empty() {
            return Err(NameError::NameUnknown);
        }
        Ok(addresses.into_iter().map(IpAddr::from).collect())
    }
}
