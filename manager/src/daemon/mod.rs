//! The daemon: sockets, a clock and a store around the [core](crate::core).
//!
//! One task owns the core and waits for nothing but the next event: not for a peer, a disk, a reader of
//! the log or a file descriptor, because the leases of all members depend on it. A task of its own accepts
//! connections, and each connection has a task for its cryptography, so that a long stream uses all
//! processors. One thread saves, and one writes the log.

mod acceptor;
mod ask;
mod connection;
mod door;
mod driver;
mod greeting;
pub mod ha;
mod keeper;
mod limits;
mod lobby;
mod outbox;
mod power;
mod reload;
mod spool;
mod store;

pub use keeper::{Keep, SaveError};
pub use reload::Reload;
pub use store::{File, Medium, Store, StoreError};
pub(crate) use store::{read_directory, replace_directory};

use crate::core::ConnId;
use crate::core::{Config, Core, Event, Saved};
use crate::http::{self, Asks, KeyGate, Publisher, Tls, TlsError};
use crate::log::{Log, LogFormat};
use acceptor::Acceptor;
use connection::Shared;
use door::Door;
use driver::Driver;
use ha::{Tenure, Term};
use keeper::{Keeper, Kept};
use limits::Limits;
use power::Powerer;
use proto::VouchingSecret;
use proto::channel::{ClusterKey, RoleKeys, WrongRole};
use reload::{Changing, Reloads};
use spool::Spooler;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};
use zeroize::Zeroizing;

/// The interval at which leases and other deadlines are checked.
const TICK: Duration = Duration::from_millis(50);

/// The name of the spool's directory in that of the state.
const SPOOL: &str = "spool";

/// The number of events that may wait for the core. Connections that have more wait themselves.
const MAX_EVENTS: usize = 256;

/// The time that the disk has to save what queued messages tell of, and then that connections have to send
/// these, when the daemon stops.
const STOP: Duration = Duration::from_secs(2);

/// The time that the last save has when the daemon stops.
const LAST_SAVE: Duration = Duration::from_secs(10);

/// The time that the last lines of the log have when the daemon stops.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The configuration of a daemon.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The cluster key.
    pub key: ClusterKey,
    /// The directory of the state.
    pub state: PathBuf,
    /// The rules of the cluster.
    pub config: Config,
    /// The service over HTTP, if there is one.
    pub http: Option<Http>,
    /// A former cluster key, whose keys are accepted as well.
    pub former: Option<ClusterKey>,
    /// The form of the log.
    pub format: LogFormat,
}

impl Options {
    /// Returns the keys of the roles, also those of the former cluster key.
    fn roles(&self) -> Result<RoleKeys, DaemonError> {
        let keys = self.key.roles()?;
        Ok(match &self.former {
            Some(former) => keys.or(former.roles()?),
            None => keys,
        })
    }
}

/// The service over HTTP.
#[derive(Clone, Debug)]
pub struct Http {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The password of people who only look, if they have one.
    pub viewers: Option<Zeroizing<String>>,
    /// The directory with the certificate and the key of TLS, which are made if there are none. `None`: the
    /// service has no TLS.
    pub tls: Option<PathBuf>,
}

/// The reason why a daemon cannot run. It is one line for people.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The address is in use, or does not belong to this host.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The state cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The state could not be saved at the end.
    #[error("the last changes are not saved: {0}")]
    Unsaved(SaveError),
    /// The spool cannot be read.
    #[error("cannot read the spool in {}: {source}", path.display())]
    Spool {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// There is no TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The key is not the whole key of the cluster.
    #[error(transparent)]
    Key(#[from] WrongRole),
    /// The operating system returns no random bytes.
    #[error("no random bytes from the operating system: {0}")]
    Random(#[from] getrandom::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// A socket that listens cannot be used.
    #[error("cannot listen: {0}")]
    Socket(io::Error),
}

/// The end of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The daemon was told to stop.
    Stopped,
    /// Another manager leads, or may lead.
    Lost,
}

/// A daemon that listens.
#[derive(Debug)]
pub struct Daemon<S = Store> {
    listener: TcpListener,
    keys: RoleKeys,
    store: S,
    /// The directory of the spool.
    spool: PathBuf,
    core: Core,
    /// The limit of the process's open files.
    descriptors: u64,
    http: Option<Serving>,
    reloads: Reloads,
    format: LogFormat,
}

/// The service over HTTP, before it begins.
#[derive(Debug)]
struct Serving {
    listener: TcpListener,
    gate: KeyGate,
    tls: Option<Tls>,
}

impl Daemon {
    /// Opens the port and the state, and raises the process's limit of open files.
    pub async fn bind(options: Options) -> Result<Self, DaemonError> {
        let listener = listen(options.listen).await?;
        let (store, saved) = Store::open(&options.state)?;
        Self::listening(listener, options, store, saved).await
    }
}

impl<S: Keep> Daemon<S> {
    /// Does the same as [`bind`](Daemon::bind), but keeps the state in `store`, from which `saved` was read.
    /// Only the spool of jobs is in the directory of the state.
    pub async fn bind_with(options: Options, store: S, saved: Saved) -> Result<Self, DaemonError> {
        Self::listening(listen(options.listen).await?, options, store, saved).await
    }

    async fn listening(
        listener: TcpListener,
        options: Options,
        store: S,
        saved: Saved,
    ) -> Result<Self, DaemonError> {
        let web = match &options.http {
            Some(http) => Some(listen(http.listen).await?),
            None => None,
        };
        Self::assemble(listener, web, options, store, saved)
    }

    /// Makes a daemon with sockets that listen already: `web` is that of HTTP.
    fn assemble(
        listener: TcpListener,
        web: Option<TcpListener>,
        options: Options,
        store: S,
        saved: Saved,
    ) -> Result<Self, DaemonError> {
        let keys = options.roles()?;
        let http = match (options.http, web) {
            (Some(Http { listen: address, viewers, tls }), Some(listener)) => Some(Serving {
                listener,
                gate: KeyGate::new(options.key.clone(), options.former, viewers),
                tls: match tls {
                    Some(directory) => Some(Tls::load_or_make(&directory, address.ip())?),
                    None => None,
                },
            }),
            _ => None,
        };
        let spool = options.state.join(SPOOL);
        let found = spool::found(&spool);
        let found = found.map_err(|source| DaemonError::Spool { path: spool.clone(), source })?;
        let saved = Saved { spool: found, ..saved };
        let secret = VouchingSecret::from_bytes(crate::key::random()?);
        let wall = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let core = Core::new(Config { wall, ..options.config }, saved, secret);
        let descriptors = limits::raise_descriptors();
        let (reloads, format) = (Reloads::default(), options.format);
        Ok(Self { listener, keys, store, spool, core, descriptors, http, reloads, format })
    }

    /// Accepts new settings from `reloads` while the daemon serves. An error is a reason why there are none,
    /// which is logged.
    #[must_use]
    pub fn reloads(mut self, reloads: mpsc::Receiver<Result<Reload, String>>) -> Self {
        self.reloads = Reloads::of(reloads);
        self
    }

    /// Returns the address on which the daemon listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the address on which the daemon serves HTTP, if it does.
    #[must_use]
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref()?.listener.local_addr().ok()
    }

    /// Returns the SHA-256 of the certificate, for people, if HTTP is served with TLS.
    #[must_use]
    pub fn certificate(&self) -> Option<&str> {
        Some(&self.http.as_ref()?.tls.as_ref()?.fingerprint)
    }

    /// Returns the reason why clients refuse the certificate, if they do.
    #[must_use]
    pub fn certificate_complaint(&self) -> Option<TlsError> {
        self.http.as_ref()?.tls.as_ref()?.check_time().err()
    }

    /// Serves until `stop` is done. Then ends all connections and returns. Members and jobs go on with the
    /// next daemon of this state.
    pub async fn serve(mut self, stop: impl Future<Output = ()>) -> Result<(), DaemonError> {
        let writer = Log::start(io::stderr(), self.format).map_err(DaemonError::Thread)?;
        let mut reloads = std::mem::take(&mut self.reloads);
        let ended = self.run(std::pin::pin!(stop), writer.log(), None, &mut reloads).await;
        writer.finish(LAST_LINES);
        ended.map(drop)
    }

    /// Serves until `stop` is done, or until a manager that shares its state has been unable to renew its
    /// leadership for the length of its lease.
    async fn run(
        self,
        mut stop: Pin<&mut impl Future<Output = ()>>,
        log: Log,
        term: Option<(Tenure, Term)>,
        reloads: &mut Reloads,
    ) -> Result<Ended, DaemonError> {
        let Self { listener, keys, store, spool, core, descriptors, http, .. } = self;
        let tenure = term.as_ref().map(|(tenure, _)| tenure.clone());
        let (tell, mut kept) = mpsc::unbounded_channel();
        let keeper = Keeper::start(store, tell).map_err(DaemonError::Thread)?;
        let (spooler, mut spooled) = Spooler::new(spool);
        let (powerer, mut powered) = Powerer::new();
        let (events, mut incoming) = mpsc::channel(MAX_EVENTS);
        let shared = Shared { keys, core: events.clone(), log: log.clone(), tenure: tenure.clone() };
        let (open, opened) = oneshot::channel::<()>();
        let accepting =
            tokio::spawn(Acceptor::new(listener, door(descriptors, &log), Arc::new(shared)).run(opened));
        let (asks, mut asked) = Asks::new();
        let (publisher, web) = http.map(|http| http.start(&core, asks)).unzip();
        let mut driver = Driver::new(core, (keeper, spooler, powerer), log, publisher, tenure);
        let mut lost = std::pin::pin!(lost(&term));
        let mut numbers = (ask::FIRST..).map(ConnId);
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            if let Some(tenure) = driver.pause() {
                tokio::select! {
                    biased;
                    () = &mut stop => break Ended::Stopped,
                    () = &mut lost => break Ended::Lost,
                    regained = tenure.regained() => match regained {
                        true => driver.go_on(),
                        false => break Ended::Lost,
                    },
                }
                continue;
            }
            tokio::select! {
                biased;
                () = &mut stop => break Ended::Stopped,
                () = &mut lost => break Ended::Lost,
                _ = tick.tick() => driver.tick(&mut incoming),
                Some(kept) = kept.recv() => driver.kept(kept),
                Some(report) = spooled.recv() => driver.spooled(report),
                Some(report) = powered.recv() => driver.powered(report),
                Some(event) = incoming.recv() => driver.incoming(event),
                Some(reload) = reloads.next() => renew(&mut driver, web.as_ref(), reload),
                Some(ask) = asked.recv() => drop(numbers.next().map(|conn| driver.ask(conn, ask, events.clone()))),
            }
        };
        drop(web);
        if term.is_some() {
            // Nothing that waits is sent any more: the next leader tells what is saved.
            accepting.abort();
            drop(driver.outboxes);
        } else {
            driver.log.line("stops");
            driver.handle(Event::Stop);
            release_held(&mut driver, &mut kept).await;
            driver.outboxes.clear();
            drop((incoming, open));
            let _ = timeout(STOP, all_closed(accepting)).await;
        }
        if ended == Ended::Stopped {
            driver.keeper.finish(LAST_SAVE).await.map_err(DaemonError::Unsaved)?;
        }
        Ok(ended)
    }
}

/// Applies new settings, or logs the reason why there are none.
fn renew(driver: &mut Driver, web: Option<&Web>, reload: Result<Reload, String>) {
    match reload {
        Ok(reload) => {
            reload::apply(reload, &mut driver.core, web.map(|web| &web.changing));
            driver.log.line("has read its settings again");
        }
        Err(reason) => driver.log.line(&format!("keeps its settings: {reason}")),
    }
}

/// Waits until the disk has saved what messages tell of that are held back, for at most [`STOP`].
async fn release_held(driver: &mut Driver, kept: &mut mpsc::UnboundedReceiver<Kept>) {
    let _ = timeout(STOP, async {
        while driver.core.holds_messages()
            && let Some(report) = kept.recv().await
        {
            driver.kept(report);
        }
    })
    .await;
}

/// Waits until the term of a manager that shares its state has ended.
async fn lost(term: &Option<(Tenure, Term)>) {
    match term {
        Some((tenure, term)) => tenure.lost(*term).await,
        None => std::future::pending().await,
    }
}

/// Waits until the connections of a task that accepts them have ended, once the task has.
async fn all_closed(accepting: JoinHandle<JoinSet<()>>) {
    if let Ok(mut connections) = accepting.await {
        while connections.join_next().await.is_some() {}
    }
}

/// The service over HTTP, which ends when this is dropped.
#[derive(Debug)]
struct Web {
    changing: Changing,
    _end: oneshot::Sender<()>,
}

impl Serving {
    /// Starts the service. Returns the publisher of the state that it shows.
    fn start(self, core: &Core, asks: Asks) -> (Publisher, Web) {
        let Self { listener, gate, tls } = self;
        let (publisher, feed) = Publisher::new(core);
        let changing = Changing { viewers: gate.viewers(), tls: tls.as_ref().map(|tls| tls.config.clone()) };
        let (end, ended) = oneshot::channel::<()>();
        let ended = async { drop(ended.await) };
        tokio::spawn(http::serve(listener, feed, Box::new(gate), asks, tls, ended));
        (publisher, Web { changing, _end: end })
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, DaemonError> {
    TcpListener::bind(address).await.map_err(|source| DaemonError::Listen { address, source })
}

/// Makes the door for as many connections as the file descriptors allow.
fn door(descriptors: u64, log: &Log) -> Arc<Door> {
    let limits = Limits::of(descriptors);
    if let Some(complaint) = limits.complaint(descriptors) {
        log.line(&complaint);
    }
    Door::new(limits)
}
