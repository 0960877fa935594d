//! perftest on the appliance: server and client for the programs `ib_{write,read,send,atomic}_{lat,bw}` of Debian's
//! perftest (4.5), over its TCP exchange on port 18515, with reliable connections.
//!
//! A system application: the only one that is given verbs and TCP. A job of it takes perftest's own command line as its
//! arguments; without an address it is the server. A kernel without a manager serves by `perftest=` (see [`Perftest::serve`]).
//!
//! What is in the buffers at the end is part of the result: a digest of what was sent and of what came, which whoever runs
//! both ends compares. Atomics are checked here: what each fetched, and what is left.
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
use core::net::SocketAddrV4;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use error::During as _;
use exchange::Exchange;
use platform::Listener;
use runtime::BoxFuture;
use session::Queues;
use spin::Once;

/// How long a server waits for its client.
const CLIENT: Duration = Duration::from_secs(600);

/// perftest on one node: one test at a time.
pub struct Perftest {
    host: Host,
    queues: Once<Queues>,
    busy: AtomicBool,
}

impl Perftest {
    /// On this machine.
    #[must_use]
    pub fn new(host: Host) -> Self {
        Self { host, queues: Once::new(), busy: AtomicBool::new(false) }
    }

    /// Runs one test: connects to the server that the options name, or waits for a client.
    pub async fn run(&self, options: &Options) -> Result<Report, Error> {
        let turn = self.turn()?;
        let exchange = match options.server {
            Some(server) => Exchange::connect(&self.host, SocketAddrV4::new(server, options.port)).await?,
            None => {
                let listener = self.host.network.listen(options.port).during("listening")?;
                Exchange::serve(self.accept(&*listener).await?)
            }
        };
        turn.test(options, exchange).await
    }

    /// Listens for as long as the caller serves.
    pub fn listen(&self, options: &Options) -> Result<Box<dyn Listener>, Error> {
        self.host.network.listen(options.port).during("listening")
    }

    /// Serves the next client; with no client for a long time, [`Error::Exchange`] says so.
    pub async fn serve(&self, options: &Options, listener: &dyn Listener) -> Result<Report, Error> {
        let turn = self.turn()?;
        let connection = self.accept(listener).await?;
        turn.test(options, Exchange::serve(connection)).await
    }

    async fn accept(&self, listener: &dyn Listener) -> Result<Box<dyn platform::Connection>, Error> {
        listener.accept(self.host.now() + CLIENT).await.during("waiting for a client")
    }

    fn turn(&self) -> Result<Turn<'_>, Error> {
        if self.busy.swap(true, Ordering::Acquire) {
            return Err(Error::Busy);
        }
        Ok(Turn(self))
    }
}

/// The right to run a test.
struct Turn<'a>(&'a Perftest);

impl Turn<'_> {
    /// In a box, so that the image has the tests once and not where each caller is.
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
