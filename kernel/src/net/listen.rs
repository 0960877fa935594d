//! Accepts TCP connections: the listening socket becomes the connection, and a new socket takes its place.

use core::future::poll_fn;
use core::task::Poll;
use platform::{Instant, NetworkError};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::{Socket, tcp};

use super::stack::{Buffers, Stack, TcpStream, socket};
use crate::sync::IrqMutex;

/// Listens on one port until it is dropped.
pub(crate) struct TcpListener {
    stack: &'static Stack,
    port: u16,
    buffers: Buffers,
    /// The listening socket. Lock order: stack, then this.
    handle: IrqMutex<SocketHandle>,
}

impl Stack {
    /// Listens on `port`. Accepted connections get buffers of the given sizes.
    pub(crate) fn listen(&'static self, port: u16, buffers: Buffers) -> Result<TcpListener, NetworkError> {
        let mut socket = socket(buffers);
        socket.listen(port).map_err(|_| NetworkError::NoAddress)?;
        let mut inner = self.inner.lock();
        let taken = inner.sockets.iter().any(|(_, other)| match other {
            Socket::Tcp(other) => other.is_listening() && other.listen_endpoint().port == port,
            Socket::Dhcpv4(_) | Socket::Dns(_) => false,
        });
        if taken {
            return Err(NetworkError::InUse);
        }
        let handle = inner.sockets.add(socket);
        Ok(TcpListener { stack: self, port, buffers, handle: IrqMutex::new(handle) })
    }
}

impl TcpListener {
    /// Returns the next connection, by `deadline`.
    pub(crate) async fn accept(&self, deadline: Instant) -> Result<TcpStream, NetworkError> {
        let mut next = socket(self.buffers);
        next.listen(self.port).map_err(|_| NetworkError::NoAddress)?;
        let mut next = Some(next);
        let accepted = poll_fn(|cx| {
            let mut inner = self.stack.inner.lock();
            let mut handle = self.handle.lock();
            let socket = inner.sockets.get_mut::<tcp::Socket<'static>>(*handle);
            match socket.state() {
                tcp::State::Listen | tcp::State::SynReceived => {
                    socket.register_recv_waker(cx.waker());
                    socket.register_send_waker(cx.waker());
                    Poll::Pending
                }
                _ => {
                    let stream = TcpStream { stack: self.stack, handle: *handle };
                    if let Some(next) = next.take() {
                        *handle = inner.sockets.add(next);
                    }
                    Poll::Ready(stream)
                }
            }
        });
        super::with_deadline(deadline, accepted).await.ok_or(NetworkError::Deadline)
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        // A connection that was not accepted is reset. Its lock must not be held meanwhile, because it comes
        // after the stack's.
        let handle = *self.handle.lock();
        drop(TcpStream { stack: self.stack, handle });
    }
}
