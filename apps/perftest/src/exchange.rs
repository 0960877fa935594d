//! The exchange over TCP. In each step the client sends its message first, and the server answers with its
//! own.

use crate::Host;
use crate::error::{During, Error};
use crate::message::{
    Bandwidth, DONE, KEYS_BY_LID_LEN, KEYS_LEN, Keys, VERSION, is_compatible, mtu_bytes, parse_mtu,
};
use crate::options::Options;
use alloc::boxed::Box;
use core::future::Future;
use core::net::{Ipv4Addr, SocketAddrV4};
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use platform::{Connection, Instant, NetworkError, yield_now};
use verbs::PathMtu;

/// The longest time that the peer may take for a step.
const STEP: Duration = Duration::from_secs(5);
/// The longest time that the peer may take to create its buffers and queue pairs.
const SETUP: Duration = Duration::from_secs(15);
/// The longest time that a client waits for a server to listen, and the pause between two attempts.
const CONNECT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(50);
/// The longest time that the peer may take to close its side of the connection.
pub(crate) const FAREWELL: Duration = Duration::from_secs(2);
/// The length of time for which the RNIC is polled before the node's other pollers run.
pub(crate) const TURN: Duration = Duration::from_micros(300);
/// Bytes of a memory page and of a cache line. perftest spreads its messages over both.
const CYCLE: u32 = 4096;
const LINE: u32 = 64;

/// Values on which both sides agree at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// The larger page of both sides, in bytes. Messages of at most half of it rotate within a page.
    pub cycle: u32,
    /// The larger cache line of both sides, in bytes. Slots are a multiple of it apart.
    pub line: u32,
    /// The path MTU.
    pub mtu: PathMtu,
}

/// A connection to the other side of a test.
pub(crate) struct Exchange {
    connection: Box<dyn Connection>,
    client: bool,
    /// The longest time that the peer may take for a test that this side cannot observe.
    test: Duration,
}

impl Exchange {
    /// Connects to a server, which may start to listen shortly after.
    pub(crate) async fn connect(host: &Host, server: Ipv4Addr, options: &Options) -> Result<Self, Error> {
        let server = SocketAddrV4::new(server, options.port);
        let deadline = host.now() + CONNECT;
        let connection = loop {
            match host.network.connect(server, deadline).await {
                Err(NetworkError::Refused) if host.now() + RETRY < deadline => {
                    let until = host.now() + RETRY;
                    while host.now() < until {
                        yield_now().await;
                    }
                }
                done => break done.during("connecting to the server")?,
            }
        };
        Ok(Self { connection, client: true, test: options.longest() })
    }

    /// Serves a client that has connected.
    #[must_use]
    pub(crate) fn serve(connection: Box<dyn Connection>, options: &Options) -> Self {
        Self { connection, client: false, test: options.longest() }
    }

    /// Returns true if this side is the client.
    #[must_use]
    pub(crate) const fn is_client(&self) -> bool {
        self.client
    }

    /// Agrees on the layout of buffers and on the MTU. `mtu` is this side's MTU.
    pub(crate) async fn agree(&mut self, host: &Host, mtu: PathMtu) -> Result<Agreed, Error> {
        if !is_compatible(&self.swap(host, &VERSION, "exchanging versions").await?) {
            return Err(Error::Version);
        }
        let mut greater = [CYCLE, LINE];
        for mine in &mut greater {
            let theirs = self.swap(host, &mine.to_be_bytes(), "exchanging sizes of buffers").await?;
            *mine = u32::from_be_bytes(theirs).max(*mine);
        }
        let [cycle, line] = greater;
        if cycle > 1 << 20 || line > cycle {
            return Err(Error::Malformed("page and cache line"));
        }
        let theirs = self.swap(host, &mtu_bytes(mtu), "exchanging MTUs").await?;
        let theirs = parse_mtu(theirs).ok_or(Error::Malformed("MTU"))?;
        Ok(Agreed { cycle, line, mtu: mtu.min(theirs) })
    }

    /// Exchanges the keys of a queue pair. This also tells each side that the other has reached this step.
    pub(crate) async fn keys(&mut self, host: &Host, mine: &Keys) -> Result<Keys, Error> {
        self.swap_keys(host, mine, SETUP, "exchanging keys").await
    }

    /// Waits for the peer, which may be in the middle of its test, and drives the RNIC meanwhile.
    pub(crate) async fn meet(&mut self, host: &Host, mine: &Keys) -> Result<(), Error> {
        spin(host, self.swap_keys(host, mine, self.test, "waiting for the peer")).await.map(drop)
    }

    async fn swap_keys(
        &mut self,
        host: &Host,
        mine: &Keys,
        within: Duration,
        step: &'static str,
    ) -> Result<Keys, Error> {
        let theirs = if mine.gid.is_some() {
            let mine: [u8; KEYS_LEN] = mine.encode();
            Keys::parse(&self.swap_within(host, &mine, within, step).await?)
        } else {
            let mine: [u8; KEYS_BY_LID_LEN] = mine.encode();
            Keys::parse(&self.swap_within(host, &mine, within, step).await?)
        };
        theirs.ok_or(Error::Malformed("keys"))
    }

    /// Exchanges the results of a bandwidth test.
    pub(crate) async fn reports(&mut self, host: &Host, mine: &Bandwidth) -> Result<Bandwidth, Error> {
        let mut values = mine.encode();
        for value in &mut values {
            // A bidirectional test may end later on the other side.
            *value = spin(host, self.swap_within(host, value, self.test, "exchanging results")).await?;
        }
        Ok(Bandwidth::decode(values))
    }

    /// Ends the exchange with a last exchange of keys and a farewell.
    pub(crate) async fn done(&mut self, host: &Host, mine: &Keys) -> Result<(), Error> {
        self.meet(host, mine).await?;
        self.connection.write(&DONE, host.now() + STEP).await.during("saying goodbye")?;
        // perftest does not wait for the farewell; a connection that ends before it is good enough.
        let mut theirs = [0; DONE.len()];
        let _ = spin(host, read_exact(&*self.connection, &mut theirs, host.now() + FAREWELL)).await;
        Ok(())
    }

    /// Closes this side and drives the RNIC until the peer has closed its own side or [`FAREWELL`] is over,
    /// so that the peer gets its acknowledgements.
    pub(crate) async fn linger(self, host: &Host) {
        spin(host, self.connection.close(host.now() + FAREWELL)).await;
    }

    /// Returns true if the peer has closed its side or the connection is broken.
    pub(crate) fn has_ended(&self, host: &Host) -> bool {
        let mut byte = [0];
        let mut read = self.connection.read(&mut byte, host.now() + STEP);
        match read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending | Poll::Ready(Ok(1..)) => false,
            Poll::Ready(Ok(0) | Err(_)) => true,
        }
    }

    async fn swap<const N: usize>(
        &mut self,
        host: &Host,
        mine: &[u8; N],
        during: &'static str,
    ) -> Result<[u8; N], Error> {
        self.swap_within(host, mine, STEP, during).await
    }

    async fn swap_within<const N: usize>(
        &mut self,
        host: &Host,
        mine: &[u8; N],
        within: Duration,
        during: &'static str,
    ) -> Result<[u8; N], Error> {
        let mut theirs = [0; N];
        let deadline = host.now() + within;
        if self.client {
            self.connection.write(mine, deadline).await.during(during)?;
        }
        read_exact(&*self.connection, &mut theirs, deadline).await.during(during)?;
        if !self.client {
            self.connection.write(mine, deadline).await.during(during)?;
        }
        Ok(theirs)
    }
}

async fn read_exact(
    connection: &dyn Connection,
    mut buf: &mut [u8],
    deadline: Instant,
) -> Result<(), NetworkError> {
    while !buf.is_empty() {
        match connection.read(buf, deadline).await? {
            0 => return Err(NetworkError::Closed),
            n => buf = buf.get_mut(n..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// Runs `future` to its end and drives the RNIC all the while, so that a measuring peer never waits for an
/// interrupt here.
async fn spin<F: Future>(host: &Host, future: F) -> F::Output {
    let mut future = pin!(future);
    core::future::poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(value);
        }
        host.drive_for(TURN);
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}
