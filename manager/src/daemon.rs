//! The daemon: sockets, a clock and a store around the [core](crate::core).
//!
//! One task owns the core and never waits for anything but the next event: not for a peer, a disk, a reader of the log or a
//! file descriptor, because the leases of all members hang on it. Connections are accepted by a task of its own, and each
//! has one that does its cryptography, so that a long stream uses all processors; a thread saves, and one writes the log.

mod acceptor;
mod connection;
mod door;
mod driver;
mod greeting;
mod keeper;
mod limits;
mod lobby;
mod log;
mod outbox;
mod store;

pub use keeper::{Keep, Trouble};
pub use store::{File, Medium, Store, StoreError};

use crate::core::{Config, Core, Event, Saved};
use acceptor::Acceptor;
use connection::House;
use door::Door;
use driver::Driver;
use keeper::Keeper;
use limits::Limits;
use log::Log;
use proto::channel::{ClusterKey, RoleKeys, WrongRole};
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How often leases and other deadlines are looked at.
const TICK: Duration = Duration::from_millis(50);

/// Events that wait for the core; connections that have more wait themselves.
const MAX_EVENTS: usize = 256;

/// How long connections may take to send what is queued when the daemon stops.
const STOP: Duration = Duration::from_secs(2);

/// How long the last save may take when the daemon stops.
const LAST_SAVE: Duration = Duration::from_secs(10);

/// How long the last lines of the log may take.
const LAST_LINES: Duration = Duration::from_secs(1);

/// How a daemon is set up.
#[derive(Debug)]
pub struct Options {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The cluster's key.
    pub key: ClusterKey,
    /// The directory of the state.
    pub state: PathBuf,
    /// The rules of the cluster.
    pub config: Config,
}

/// Why a daemon cannot run. One line for people.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The address is taken or not of this host.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The state cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The state cannot be written any more.
    #[error("the last changes are not saved: {0}")]
    Unsaved(Trouble),
    /// The key is not the cluster's whole key.
    #[error(transparent)]
    Key(#[from] WrongRole),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// A daemon that listens.
#[derive(Debug)]
pub struct Daemon<S = Store> {
    listener: TcpListener,
    keys: RoleKeys,
    store: S,
    core: Core,
    /// How many files the process may open.
    descriptors: u64,
}

impl Daemon {
    /// Opens the port and the state. Raises the process's limit of open files.
    pub async fn bind(options: Options) -> Result<Self, DaemonError> {
        let listener = listen(options.listen).await?;
        let (store, saved) = Store::open(&options.state)?;
        Self::new(listener, options, store, saved)
    }
}

impl<S: Keep> Daemon<S> {
    /// As [`bind`](Daemon::bind), but the state is kept in `store`, in which `saved` was found; the directory is not used.
    pub async fn bind_with(options: Options, store: S, saved: Saved) -> Result<Self, DaemonError> {
        Self::new(listen(options.listen).await?, options, store, saved)
    }

    fn new(listener: TcpListener, options: Options, store: S, saved: Saved) -> Result<Self, DaemonError> {
        let keys = options.key.roles()?;
        let core = Core::new(options.config, saved);
        Ok(Self { listener, keys, store, core, descriptors: limits::raise_descriptors() })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is done, then fails what is under way, tells those concerned, and returns.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), DaemonError> {
        let writer = Log::start(io::stderr()).map_err(DaemonError::Thread)?;
        let ended = self.serve_with(stop, writer.log()).await;
        writer.finish(LAST_LINES);
        ended
    }

    async fn serve_with(self, stop: impl Future<Output = ()>, log: Log) -> Result<(), DaemonError> {
        let Self { listener, keys, store, core, descriptors } = self;
        let (tell, mut kept) = mpsc::unbounded_channel();
        let keeper = Keeper::start(store, tell).map_err(DaemonError::Thread)?;
        let (events, mut incoming) = mpsc::channel(MAX_EVENTS);
        let house = Arc::new(House { keys, core: events, log: log.clone() });
        let (open, opened) = oneshot::channel::<()>();
        let accepting = tokio::spawn(Acceptor::new(listener, door(descriptors, &log), house).run(opened));
        let start = std::time::Instant::now();
        let mut driver = Driver { core, start, outboxes: HashMap::new(), keeper, log };
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                _ = tick.tick() => driver.tick(&mut incoming),
                Some(kept) = kept.recv() => driver.kept(kept),
                Some(event) = incoming.recv() => driver.incoming(event),
            }
        }
        driver.log.line("stops");
        driver.handle(Event::Stop);
        driver.outboxes.clear();
        drop(incoming);
        drop(open);
        let _ = timeout(STOP, async {
            if let Ok(mut connections) = accepting.await {
                while connections.join_next().await.is_some() {}
            }
        })
        .await;
        driver.keeper.finish(LAST_SAVE).await.map_err(DaemonError::Unsaved)
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, DaemonError> {
    TcpListener::bind(address).await.map_err(|source| DaemonError::Listen { address, source })
}

/// The door for as many connections as there can be file descriptors.
fn door(descriptors: u64, log: &Log) -> Arc<Door> {
    let limits = Limits::of(descriptors);
    if let Some(complaint) = limits.complaint(descriptors) {
        log.line(&complaint);
    }
    Door::new(limits)
}
