//! A node: joining, serving, leaving.

use crate::clock::Clock;
use crate::host::Host;
use crate::link::{Link, Manager};
use crate::log_ring;
use crate::nic::Nic;
use crate::poller::{Alarm, Poller};
use futures_lite::future::block_on;
use lite::Lite;
use manager::client::{ClientError, Connection, REPLY_TIMEOUT, addresses};
use proto::channel::{ChannelError, ClusterKey, Role};
use proto::{
    AppManifest, BootReport, Hello, Join, PROTOCOL_VERSION, RnicOffer, Telemetry, ToManager, ToNode, Welcome,
    is_standby, version_after,
};
use runtime::{App, End};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The pause between two attempts to connect to a manager that refuses the connection.
const RETRY: Duration = Duration::from_millis(100);
/// The time that each of several managers has to answer: one of them may be stopped.
const QUICK: Duration = Duration::from_secs(1);
/// The time that the manager may take to end the connection of a node that leaves.
const FAREWELL: Duration = Duration::from_secs(2);

/// The options of a join.
#[derive(Debug)]
pub struct Options {
    /// The manager's address, `host:port`; commas separate the addresses of several managers.
    pub manager: String,
    /// The cluster's key.
    pub key: ClusterKey,
    /// The name of the node, 1 to 64 bytes.
    pub name: String,
    /// True if the node keeps its number when it joins again under its name.
    pub keep_id: bool,
    /// The number of threads that run tasks of applications.
    pub cpus: usize,
    /// The applications whose jobs the node accepts.
    pub apps: Vec<AppManifest>,
    /// LITE's sizes and times; the name in it is replaced by `name`.
    pub lite: lite::Config,
    /// The time limit of the join.
    pub join_within: Duration,
}

/// The reason for which a node could not join. One line for people.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The manager has another cluster key.
    #[error("wrong cluster key: the manager at {0} has another")]
    WrongKey(String),
    /// The manager cannot be reached, or the answer is not that of a manager.
    #[error(transparent)]
    Manager(#[from] ClientError),
    /// The manager has refused.
    #[error("the manager refuses: {0}")]
    Refused(String),
    /// Threads or other resources of the operating system are missing.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    /// RNIC or memory do not suffice.
    #[error("LITE: {0}")]
    Lite(lite::Error),
}

/// A node that has joined. Dropping it leaves at once, and work in flight is cut off; see
/// [`leave`](Self::leave).
pub struct Node {
    lite: Lite,
    link: Arc<Link>,
    host: Arc<Host>,
    poller: Poller,
}

impl Node {
    /// Joins the cluster with `nic`. `clock` must be the one that the RNIC was made with.
    ///
    /// # Errors
    /// A [`JoinError`], within the time of the options.
    pub fn join(clock: Clock, nic: Nic, options: Options) -> Result<Self, JoinError> {
        let Options { manager, key, name, keep_id, cpus, apps, lite: config, join_within } = options;
        let cpus = cpus.max(1);
        let deadline = Instant::now() + join_within;
        let alarm = Alarm::new()?;
        let offer = Join { keep_id, ..offer(&nic, name.clone(), cpus, apps) };
        let (connection, welcome, asked, version) = connect(&manager, &key, &offer, deadline, clock)?;
        let manager = Manager { address: manager, key, silence: config.silence };
        let link = Link::start(clock, connection, (asked, &welcome, version), manager)?;
        log::info!("joined as {} ({name}), {} other members", welcome.node, welcome.members.len());

        let Nic { rnic, memory, assign, events, .. } = nic;
        assign(welcome.gid);
        let host = Host::start(clock, cpus, memory, alarm.clone())?;
        let last_words = {
            let link = link.clone();
            move |why: &str| {
                log::error!("this node ends: {why}");
                link.say(&ToManager::Log { lines: log_ring::take_last(Telemetry::MAX_LOG) });
                link.say_last(&ToManager::LastWords { reason: why.into() });
            }
        };
        host.on_panic(last_words.clone());
        // The threads of the process do not know on which core they run.
        let config = lite::Config { name, cores: 1, ..config };
        let started = Lite::start(host.clone(), rnic.clone(), link.clone(), welcome, config)
            .map_err(JoinError::Lite)
            .and_then(|lite| {
                let poller = Poller::start(clock, alarm, rnic, lite.clone(), events, last_words)?;
                Ok((lite, poller))
            });
        match started {
            Ok((lite, poller)) => Ok(Self { lite, link, host, poller }),
            Err(error) => {
                link.say_last(&ToManager::LastWords { reason: error.to_string() });
                link.stop();
                host.stop();
                Err(error)
            }
        }
    }

    /// Returns the LITE of this node.
    #[must_use]
    pub fn lite(&self) -> &Lite {
        &self.lite
    }

    /// Serves jobs with these applications until the membership ends.
    pub fn serve(&self, apps: Vec<Box<dyn App>>) -> End {
        block_on(runtime::serve(self.lite.clone(), apps))
    }

    /// Leaves in good order, as [`Lite::leave`] does: work in flight may end until `within` is over. The
    /// membership ends, and with it [`serve`](Self::serve). A task must not call this.
    ///
    /// # Errors
    /// `Deadline`: work was cut off. The node has left all the same.
    pub fn leave(&self, within: Duration) -> Result<(), lite::Error> {
        self.link.expect_end();
        match block_on(self.lite.with_deadline(within).leave()) {
            // The node is no longer a member, or another thread makes it leave.
            Err(lite::Error::LinkDown) => Ok(()),
            other => other,
        }
    }
}

impl Drop for Node {
    /// Leaves at once, unless [`leave`](Node::leave) has done it in good order.
    fn drop(&mut self) {
        self.link.say_last(&ToManager::Leave);
        self.link.wait_down(FAREWELL);
        self.link.stop();
        // Handles that outlive the node must fail at once, so this waits until a task of LITE has seen that
        // the connection is down.
        let fenced = async {
            let messages = self.lite.control_messages();
            while messages.next().await.is_some() {}
        };
        block_on(futures_lite::future::or(fenced, self.lite.sleep(FAREWELL)));
        self.poller.stop();
        self.host.stop();
    }
}

/// Returns the number of this boot of the host, as far as it can be read.
fn boot_id() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

/// Returns the node's offer to the manager.
fn offer(nic: &Nic, name: String, cpus: usize, apps: Vec<AppManifest>) -> Join {
    let attributes = nic.rnic.attributes();
    let stats = nic.memory.stats();
    Join {
        version: PROTOCOL_VERSION,
        name,
        keep_id: false,
        rnic: RnicOffer {
            driver: attributes.driver.into(),
            links: attributes.links.to_vec(),
            mac: attributes.port.mac,
            gid: nic.gid,
            lid: attributes.port.lid,
            mtu: attributes.max_mtu,
            max_rd_atomic: attributes.max_rd_atomic,
            key: nic.rnic.memory_key(),
            physical: false,
        },
        memory: stats.total,
        memory_free: stats.free,
        cpus: u16::try_from(cpus).unwrap_or(u16::MAX),
        apps,
        boot: BootReport::default(),
        boot_id: boot_id(),
    }
}

/// A connection on which the node is a member, the welcome, the time at which the node has asked for it, and
/// the version of the protocol that the manager has accepted.
type Joined = (Connection, Welcome, platform::Instant, u16);

/// Connects to the manager, which may still be starting, and joins. Of several managers it finds the one that
/// leads.
fn connect(
    managers: &str,
    key: &ClusterKey,
    offer: &Join,
    deadline: Instant,
    clock: Clock,
) -> Result<Joined, JoinError> {
    let all = addresses(managers);
    let mut round = all.iter().cycle();
    for turn in 1.. {
        let Some(manager) = round.next() else { break };
        let error = match ask(manager, (key, all.len() > 1), offer, deadline, clock) {
            Ok(joined) => return Ok(joined),
            Err(error) => error,
        };
        let passes = match &error {
            JoinError::Manager(ClientError::Unreachable { source, .. }) => {
                source.kind() == io::ErrorKind::ConnectionRefused || all.len() > 1
            }
            JoinError::Manager(ClientError::Silent(_) | ClientError::Lost(_)) => all.len() > 1,
            JoinError::Refused(reason) => is_standby(reason),
            _ => false,
        };
        if !passes || Instant::now() + RETRY >= deadline {
            return Err(error);
        }
        if turn % all.len() == 0 {
            thread::sleep(RETRY);
        }
    }
    Err(ClientError::Unexpected.into())
}

/// Asks one manager, among `several` or alone, for a membership.
fn ask(
    manager: &str,
    (key, several): (&ClusterKey, bool),
    offer: &Join,
    deadline: Instant,
    clock: Clock,
) -> Result<Joined, JoinError> {
    let limit = if several { QUICK } else { REPLY_TIMEOUT };
    let mut connection = match Connection::open_within(manager, key, Role::Node, limit) {
        Err(ClientError::Channel(ChannelError::WrongKey)) => {
            return Err(JoinError::WrongKey(manager.into()));
        }
        opened => opened?,
    };
    let asked = clock.now();
    let version = offer.version;
    connection.sending.send(&Hello::Node(offer.clone()))?;
    let left = deadline.saturating_duration_since(Instant::now()).max(RETRY);
    match connection.receiving.receive(Some(left))? {
        ToNode::Welcome(welcome) => Ok((connection, welcome, asked, version)),
        ToNode::Refused { reason } => match version_after(version, &reason) {
            Some(lower) => {
                ask(manager, (key, several), &Join { version: lower, ..offer.clone() }, deadline, clock)
            }
            None => Err(JoinError::Refused(reason)),
        },
        _ => Err(ClientError::Unexpected.into()),
    }
}
