//! TCP connections.

use core::future::poll_fn;
use core::net::Ipv4Addr;
use core::task::{Context, Poll};
use core::time::Duration;
use platform::{Instant, NetworkError};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;
use smoltcp::wire::IpAddress;

use super::Stack;
use crate::net::with_deadline;
use crate::time;

/// A TCP connection. Dropping it resets the connection.
pub(crate) struct TcpStream {
    pub(in crate::net) stack: &'static Stack,
    pub(in crate::net) handle: SocketHandle,
}

impl TcpStream {
    /// Keeps the connection while the peer is silent for up to `silence`, or for ever if that is `None`.
    pub(crate) fn outlast(&self, silence: Option<Duration>) {
        let silence = silence.map(|silence| smoltcp::time::Duration::from_secs(silence.as_secs().max(1)));
        self.with(|socket| socket.set_timeout(silence));
    }

    /// Runs `f` on the socket.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut tcp::Socket<'static>) -> R) -> R {
        let mut inner = self.stack.inner.lock();
        f(inner.sockets.get_mut(self.handle))
    }

    /// Returns the IPv4 address of the other side; `None` once the connection has ended.
    #[cfg_attr(not(feature = "perftest"), expect(dead_code, reason = "only perftest calls it"))]
    pub(crate) fn peer(&self) -> Option<Ipv4Addr> {
        match self.with(|socket| socket.remote_endpoint())?.addr {
            IpAddress::Ipv4(address) => Some(address),
            IpAddress::Ipv6(_) => None,
        }
    }

    /// Runs `f` on the socket, and then makes the stack send the socket's data.
    pub(in crate::net) fn with_and_send<R>(&self, f: impl FnOnce(&mut tcp::Socket<'static>) -> R) -> R {
        let mut inner = self.stack.inner.lock();
        let result = f(inner.sockets.get_mut(self.handle));
        inner.next = Some(Instant::ZERO);
        self.stack.port.with(|port| inner.poll(self.stack.port, port, time::now()));
        result
    }

    /// Reads up to `buf.len()` bytes that have arrived. Pending while there are none. Returns 0 once the peer
    /// has closed its side.
    pub(crate) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<usize, NetworkError>> {
        let mut inner = self.stack.inner.lock();
        let socket = inner.sockets.get_mut::<tcp::Socket<'static>>(self.handle);
        match socket.recv_slice(buf) {
            Ok(0) if !buf.is_empty() => {
                socket.register_recv_waker(cx.waker());
                Poll::Pending
            }
            Ok(n) => {
                // The window has grown: the poller tells the peer if that is worth a segment.
                inner.next = Some(Instant::ZERO);
                Poll::Ready(Ok(n))
            }
            Err(tcp::RecvError::Finished) => Poll::Ready(Ok(0)),
            Err(tcp::RecvError::InvalidState) => Poll::Ready(Err(NetworkError::Closed)),
        }
    }

    /// Copies up to `data.len()` bytes into the send buffer and sends as many as the window allows. Pending
    /// while the buffer is full.
    pub(crate) fn poll_write(&self, cx: &mut Context<'_>, data: &[u8]) -> Poll<Result<usize, NetworkError>> {
        match self.try_write(data) {
            Ok(0) if !data.is_empty() => {
                let registered = self.with(|socket| {
                    socket.register_send_waker(cx.waker());
                    !socket.may_send() || socket.can_send()
                });
                // The state may have changed since the waker was registered.
                if registered {
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
            done => Poll::Ready(done),
        }
    }

    /// Writes as [`poll_write`](Self::poll_write) does, but returns 0 if the buffer is full. The poller may
    /// call it too: it neither allocates nor waits.
    pub(crate) fn try_write(&self, data: &[u8]) -> Result<usize, NetworkError> {
        self.with_and_send(|socket| socket.send_slice(data)).map_err(|_| NetworkError::Closed)
    }

    /// Writes as [`try_write`](Self::try_write) does, in the last words of a processor. Returns `None` if a
    /// lock is held, possibly by this processor.
    pub(crate) fn dying_write(&self, data: &[u8]) -> Option<Result<usize, NetworkError>> {
        let mut inner = self.stack.inner.try_lock()?;
        let socket = inner.sockets.get_mut::<tcp::Socket<'static>>(self.handle);
        let written = socket.send_slice(data).map_err(|_| NetworkError::Closed);
        inner.next = Some(Instant::ZERO);
        Some(written)
    }

    /// Polls the network once, in the last words of a processor. Returns `None` if a lock is held, possibly
    /// by this processor.
    pub(crate) fn dying_poll(&self) -> Option<bool> {
        self.stack.try_poll(time::now())
    }

    /// Polls the network until the peer has received all data, or until `until`. For last words only.
    pub(crate) fn dying_flush(&self, until: Instant) {
        while time::now() < until {
            let Some(inner) = self.stack.inner.try_lock() else { return };
            let left = inner.sockets.get::<tcp::Socket<'static>>(self.handle).send_queue();
            drop(inner);
            if left == 0 || self.stack.try_poll(time::now()).is_none() {
                return;
            }
        }
    }

    /// Closes this side, and waits until the peer has received all data and closed its own side, but at most
    /// until `deadline`.
    #[cfg_attr(not(feature = "perftest"), expect(dead_code, reason = "perftest alone has TCP on the fabric"))]
    pub(crate) async fn close(self, deadline: Instant) {
        self.with_and_send(tcp::Socket::close);
        let closed = poll_fn(|cx| {
            self.with(|socket| match socket.state() {
                tcp::State::Closed | tcp::State::TimeWait => Poll::Ready(()),
                _ => {
                    socket.register_recv_waker(cx.waker());
                    socket.register_send_waker(cx.waker());
                    Poll::Pending
                }
            })
        });
        // A connection that is not closed by then is reset.
        let _ = with_deadline(deadline, closed).await;
    }

    /// Reads bytes that have arrived, by `deadline`. Returns 0 once the peer has closed its side.
    pub(crate) async fn read(&self, buf: &mut [u8], deadline: Instant) -> Result<usize, NetworkError> {
        let read = poll_fn(|cx| self.poll_read(cx, buf));
        with_deadline(deadline, read).await.unwrap_or(Err(NetworkError::Deadline))
    }

    /// Copies all of `data` into the send buffer, by `deadline`.
    pub(crate) async fn write_all(&self, mut data: &[u8], deadline: Instant) -> Result<(), NetworkError> {
        while !data.is_empty() {
            let write = poll_fn(|cx| self.poll_write(cx, data));
            let n = with_deadline(deadline, write).await.unwrap_or(Err(NetworkError::Deadline))?;
            data = data.get(n..).unwrap_or_default();
        }
        Ok(())
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.with_and_send(tcp::Socket::abort);
        let socket = self.stack.inner.lock().sockets.remove(self.handle);
        // The socket's buffers are freed without the lock.
        drop(socket);
    }
}
