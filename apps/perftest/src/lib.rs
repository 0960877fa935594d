//! perftest on the appliance: server and client for the programs `ib_{write,read,send,atomic}_{lat,bw}` of
//! Debian's perftest (4.5), with its TCP exchange on port 18515, over reliable connections.
//!
//! perftest is a system application, the only one with access to verbs and TCP. The arguments of its job are
//! perftest's own command line; without an address it is the server. A kernel without a manager serves by
//! `perftest=` (see [`Perftest::serve`]).
//!
//! The content of the buffers at the end is part of the result: a digest of the bytes that were sent and one
//! of the bytes that arrived. The caller of both ends compares them. Atomics are checked here: the value that
//! each fetched, and the values that remain.
//!
//! # Neighbours
//! [`verbs`] is the interface of the RNIC that it measures, and [`runtime`] starts it as a job.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod atomics;
mod buffer;
mod error;
mod exchange;
mod figures;
mod host;
mod job;
pub mod message;
mod options;
mod report;
mod run;
mod session;
mod test;

pub use buffer::Digest;
pub use error::Error;
pub use figures::Latency;
pub use host::Host;
pub use job::Job;
pub use options::{Atomic, Figure, Options, Program, Verb};
pub use report::{Content, Report, Row};

use alloc::boxed::Box;
use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use error::During as _;
use exchange::Exchange;
use platform::{Connection, Listener};
use runtime::BoxFuture;
use session::Queues;
use spin::Once;

/// The longest time that a server waits for its client.
const CLIENT: Duration = Duration::from_secs(600);

/// A filter of the clients that a server serves, by address.
pub type Clients<'a> = dyn Fn(Ipv4Addr) -> bool + Sync + 'a;

/// perftest on one node. It runs one test at a time.
pub struct Perftest {
    host: Host,
    queues: Once<Queues>,
    busy: AtomicBool,
}

impl Perftest {
    /// Returns perftest for this machine.
    #[must_use]
    pub fn new(host: Host) -> Self {
        Self { host, queues: Once::new(), busy: AtomicBool::new(false) }
    }

    /// Runs one test: connects to the server that the options name, or waits for a client. Any client is
    /// served unless the options name one.
    pub async fn run(&self, options: &Options) -> Result<Report, Error> {
        self.run_for(options, &|_| true).await
    }

    /// Runs one test as [`run`](Self::run) does, but serves only `clients` if the options name no client.
    pub async fn run_for(&self, options: &Options, clients: &Clients<'_>) -> Result<Report, Error> {
        let turn = self.turn()?;
        let exchange = match options.server {
            Some(server) => Exchange::connect(&self.host, server, options).await?,
            None => {
                let listener = self.host.network.listen(options.port).during("listening")?;
                Exchange::serve(self.accept(options, &*listener, clients).await?, options)
            }
        };
        turn.test(options, exchange).await
    }

    /// Listens for clients until the returned value is dropped.
    pub fn listen(&self, options: &Options) -> Result<Box<dyn Listener>, Error> {
        self.host.network.listen(options.port).during("listening")
    }

    /// Serves the next client. If none connects for a long time, the error is [`Error::Exchange`].
    pub async fn serve(&self, options: &Options, listener: &dyn Listener) -> Result<Report, Error> {
        let turn = self.turn()?;
        let connection = self.accept(options, listener, &|_| true).await?;
        turn.test(options, Exchange::serve(connection, options)).await
    }

    /// Returns the next connection of a client that may be served. Other connections are reset.
    async fn accept(
        &self,
        options: &Options,
        listener: &dyn Listener,
        clients: &Clients<'_>,
    ) -> Result<Box<dyn Connection>, Error> {
        let deadline = self.host.now() + CLIENT;
        loop {
            let connection = listener.accept(deadline).await.during("waiting for a client")?;
            let Some(client) = connection.peer() else { continue };
            if options.peer.map_or_else(|| clients(client), |peer| peer == client) {
                return Ok(connection);
            }
            log::warn!("perftest: refused a connection of {client}, which is not the test's peer");
        }
    }

    fn turn(&self) -> Result<Turn<'_>, Error> {
        if self.busy.swap(true, Ordering::Acquire) {
            return Err(Error::Busy);
        }
        Ok(Turn(self))
    }
}

/// The exclusive right to run a test.
struct Turn<'a>(&'a Perftest);

impl Turn<'_> {
    /// Returns a boxed future, so that the image contains the test once and not once per caller.
    fn test<'a>(&'a self, options: &'a Options, exchange: Exchange) -> BoxFuture<'a, Result<Report, Error>> {
        Box::pin(async move {
            let Perftest { host, queues, .. } = self.0;
            let queues = *queues.try_call_once(|| Queues::new(host))?;
            test::run(host, queues, options, exchange).await
        })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}
