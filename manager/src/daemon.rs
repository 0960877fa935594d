//! The daemon: sockets, a clock and a store around the [core](crate::core).
//!
//! One task owns the core and never waits for a peer; each connection has a task of its own, which does its
//! cryptography, so that a long stream uses all processors.

mod connection;
mod store;

pub use store::{Store, StoreError};

use crate::core::{Action, Config, ConnId, Core, Event};
use connection::{Incoming, Outbox};
use platform::Instant;
use proto::channel::ClusterKey;
use std::collections::HashMap;
use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

/// How often leases and other deadlines are looked at.
const TICK: Duration = Duration::from_millis(50);

/// Connections that may be in their handshake at once.
const MAX_HANDSHAKES: usize = 256;

/// Events that wait for the core; connections that have more wait themselves.
const MAX_EVENTS: usize = 256;

/// How long connections may take to send what is queued when the daemon stops.
const STOP: Duration = Duration::from_secs(2);

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
    /// The state.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A daemon that listens.
#[derive(Debug)]
pub struct Daemon {
    listener: TcpListener,
    key: Arc<ClusterKey>,
    store: Store,
    core: Core,
}

impl Daemon {
    /// Opens the state and the port.
    pub async fn bind(options: Options) -> Result<Self, DaemonError> {
        let address = options.listen;
        let listener =
            TcpListener::bind(address).await.map_err(|source| DaemonError::Listen { address, source })?;
        let (store, saved) = Store::open(&options.state)?;
        let core = Core::new(options.config, saved);
        Ok(Self { listener, key: Arc::new(options.key), store, core })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is done, then fails what is under way, tells those concerned, and returns.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), DaemonError> {
        let Self { listener, key, store, core } = self;
        let (events, mut incoming) = mpsc::channel(MAX_EVENTS);
        let mut connections = JoinSet::new();
        let mut driver = Driver { core, store, start: std::time::Instant::now(), outboxes: HashMap::new() };
        let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut next_conn = 0;
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                _ = tick.tick() => driver.handle(Event::Tick)?,
                event = incoming.recv() => match event {
                    Some(event) => driver.incoming(event)?,
                    None => break,
                },
                Some(_) = connections.join_next() => {}
                accepted = accept(&listener, &handshakes) => match accepted {
                    Ok((stream, permit)) => {
                        next_conn += 1;
                        let serve = connection::serve(stream, ConnId(next_conn), key.clone(), events.clone(), permit);
                        connections.spawn(serve);
                    }
                    Err(error) => {
                        // Out of file descriptors, most likely: those that end make room.
                        driver.log(&format!("cannot accept a connection: {error}"));
                        tokio::time::sleep(TICK).await;
                    }
                },
            }
        }
        driver.log("stops");
        driver.handle(Event::Stop)?;
        driver.outboxes.clear();
        drop(incoming);
        let _ = tokio::time::timeout(STOP, async { while connections.join_next().await.is_some() {} }).await;
        Ok(driver.store.flush()?)
    }
}

async fn accept(
    listener: &TcpListener,
    handshakes: &Arc<Semaphore>,
) -> io::Result<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = handshakes.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

/// The core with what its actions need.
struct Driver {
    core: Core,
    store: Store,
    start: std::time::Instant,
    outboxes: HashMap<ConnId, Outbox>,
}

impl Driver {
    fn incoming(&mut self, incoming: Incoming) -> Result<(), DaemonError> {
        match incoming {
            Incoming::Opened { conn, peer, outbox } => {
                self.outboxes.insert(conn, outbox);
                self.handle(Event::Opened { conn, peer: &peer })
            }
            Incoming::Received { conn, bytes } => self.handle(Event::Received { conn, bytes: &bytes }),
            Incoming::Sent { conn, bulk } => self.handle(Event::Sent { conn, bulk }),
            Incoming::Closed { conn, reason } => {
                self.outboxes.remove(&conn);
                self.handle(Event::Closed { conn, reason: &reason })
            }
            Incoming::Rejected { peer, reason } => {
                self.log(&format!("{peer}: {reason}"));
                Ok(())
            }
        }
    }

    fn handle(&mut self, event: Event<'_>) -> Result<(), DaemonError> {
        let now = Instant::ZERO + self.start.elapsed();
        let mut actions = self.core.handle(now, event);
        while !actions.is_empty() {
            let mut full = Vec::new();
            for action in actions {
                match action {
                    Action::Send { conn, message } => {
                        if self.outboxes.get(&conn).is_some_and(|outbox| !outbox.send(message)) {
                            full.push(conn);
                        }
                    }
                    // Without its outbox a connection sends what is queued and ends.
                    Action::Close { conn } => drop(self.outboxes.remove(&conn)),
                    Action::Reading { conn, on } => {
                        if let Some(outbox) = self.outboxes.get(&conn) {
                            outbox.reading(on);
                        }
                    }
                    Action::Save(record) => tokio::task::block_in_place(|| self.store.save(&record))?,
                    Action::Log(line) => self.log(&line),
                }
            }
            actions = Vec::new();
            for conn in full {
                if self.outboxes.remove(&conn).is_some() {
                    let reason = "it does not take what is sent to it";
                    actions.extend(self.core.handle(now, Event::Closed { conn, reason }));
                }
            }
        }
        Ok(())
    }

    /// One line on standard error, with the seconds since the start. A log that nobody reads stops nothing.
    fn log(&self, line: &str) {
        let seconds = self.start.elapsed().as_secs_f64();
        let _ = writeln!(io::stderr(), "[{seconds:10.3}] {line}");
    }
}
