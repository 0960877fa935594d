//! The manager without I/O: membership, relay, names and jobs as one state machine.
//!
//! Time, connections and messages come in as [`Event`]s. The core answers each with [`Action`]s, to be
//! done in order. The daemon drives it with sockets and a clock, the simulator with virtual ones.

mod audit;
mod clients;
mod commit;
mod cut;
mod datasets;
mod entries;
mod history;
mod identity;
mod images;
mod inventory;
mod jobs;
pub mod json;
mod machine;
mod members;
mod names;
mod power;
mod rate;
mod records;
mod resume;
mod rollout;
mod rules;
mod service;
mod spool;
mod telemetry;
mod timeline;
mod users;
mod vacate;
mod view;
mod vouchers;
mod wire;

pub use cut::{Cutter, Excess, Piece, split_size};
pub use entries::{Change, Entries};
pub use images::KeptImage;
pub use inventory::InventoryView;
pub use names::Directory;
pub use power::{PowerOrder, PowerReport};
pub use records::{
    DatasetRecord, EndedRecord, JobRecord, KeptReport, MemberRecord, NameRecord, Record, Saved, Spec, Stage,
    Ticket, Wanted,
};
pub use rules::Rules;
pub use service::{Withdrawn, WithdrawnRecord};
pub use spool::{
    FoundFile, MemorySpool, SpoolFile, SpoolLimits, SpoolOrder, SpoolPart, SpoolReader, SpoolReport,
};
pub use telemetry::{Departed, NodeLine, NodeTelemetry, Sample};
pub use timeline::{PartLine, PartPhase, Timeline};
pub use view::{CoreEvent, EventList, NodeView, View};
pub use wire::Message;

use audit::Audit;
use clients::{Clients, Leaving};
use commit::Commit;
use datasets::Datasets;
use history::History;
use identity::Identities;
use images::Images;
use jobs::Jobs;
use machine::Orders;
use members::{Members, named};
use platform::Instant;
use power::Powers;
use proto::channel::UserId;
use proto::{
    Departures, FromClient, Hello, HelloKind, OLDEST_VERSION, OTHER_VERSION, PROTOCOL_VERSION, Reason,
    Refusal, ToClient, ToManager, ToNode, UserRole, VouchingSecret, printable,
};
use rollout::Rollout;
use service::Service;
use std::collections::BTreeMap;
use std::time::Duration;
use telemetry::Told;
use timeline::Timelines;
use users::Users;
use view::Events;
use vouchers::Vouchers;

/// A connection, numbered by the driver of the core. A number is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u64);

/// The least number of ticks in a lease. After a longer time without a tick, the manager has been deaf
/// meanwhile.
const TICKS_PER_LEASE: u32 = 8;

/// The options of the operator.
#[derive(Clone, Debug)]
pub struct Config {
    /// The time after which a member without a heartbeat loses its membership.
    pub lease: Duration,
    /// The time in which a new connection must send its first message.
    pub hello: Duration,
    /// The time that nodes have to accept a job, and that a client has to continue its input.
    pub reply_timeout: Duration,
    /// The time that nodes have to leave after they are told to.
    pub leave: Duration,
    /// The time that nodes have to end their part of a cancelled job. After it, a job that waits for them is
    /// refused.
    pub ending: Duration,
    /// The limit of the input that waits for one node of a job, in [charges](ToNode::input_charge). Above it
    /// the manager accepts no more input from the client.
    pub input_window: u64,
    /// The limit of the input that waits for all nodes of a job together, in [charges](ToNode::input_charge).
    pub job_window: u64,
    /// The time since 1970 (UTC) at [`Instant::ZERO`] of this process.
    pub wall: Duration,
    /// The maximum number of jobs that wait in the queue.
    pub queue: usize,
    /// The time for which the history keeps a job that has ended, unless the spool keeps files longer.
    pub history: Duration,
    /// The maximum number of jobs in the history. The oldest is forgotten first.
    pub history_jobs: usize,
    /// The maximum memory of the history, in bytes. The oldest job is forgotten first.
    pub history_bytes: usize,
    /// The rules that change while the cluster runs.
    pub rules: Rules,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(5),
            hello: Duration::from_secs(5),
            reply_timeout: Duration::from_secs(30),
            leave: Duration::from_secs(10),
            ending: Duration::from_secs(20),
            input_window: 4 << 20,
            job_window: 256 << 20,
            wall: Duration::ZERO,
            queue: 1000,
            history: Duration::from_secs(7 * 24 * 3600),
            history_jobs: 10_000,
            history_bytes: 32 << 20,
            rules: Rules::default(),
        }
    }
}

/// An event outside of the core, which its driver reports.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A peer with the cluster key has connected.
    Opened {
        /// The connection.
        conn: ConnId,
        /// The address of the peer, for people.
        peer: &'a str,
    },
    /// A peer that has connected, and has said nothing yet, has the key of a user.
    Identified {
        /// The connection.
        conn: ConnId,
        /// The user's public key.
        user: UserId,
    },
    /// A whole message has arrived.
    Received {
        /// The connection.
        conn: ConnId,
        /// The message, encoded.
        bytes: &'a [u8],
    },
    /// A message of an [`Action::Send`] has been handed to the network. The core needs this event for
    /// messages whose [`Message::bulk`] is not zero: it is the acknowledgement of output.
    Sent {
        /// The connection.
        conn: ConnId,
        /// The [`Message::bulk`] of the message.
        bulk: usize,
    },
    /// The connection has ended without an [`Action::Close`].
    Closed {
        /// The connection.
        conn: ConnId,
        /// The reason, for people.
        reason: &'a str,
    },
    /// The record of an [`Action::Save`] is on the disk. Records are saved in order.
    Saved {
        /// The record.
        record: &'a Record,
    },
    /// Nothing can be saved at present. The driver tries again, and reports success with the next
    /// [`Event::Saved`].
    SaveFailed {
        /// The reason, for people.
        reason: &'a str,
    },
    /// A report about an [`Action::Spool`].
    Spool {
        /// The report.
        report: &'a SpoolReport,
    },
    /// A report about an [`Action::Power`].
    Power {
        /// The report.
        report: &'a PowerReport,
    },
    /// Time has passed: the core ends everything whose deadline is over. It is due at
    /// [`Core::next_deadline`], or in short intervals. If a tick comes late, all deadlines move by the delay:
    /// a lease ends only after a time in which the manager could have received a heartbeat.
    Tick,
    /// The manager is about to stop.
    Stop,
}

/// A request of the core to its driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Queue a message.
    Send {
        /// The connection.
        conn: ConnId,
        /// The message.
        message: Message,
    },
    /// End the connection once all queued messages have been sent. Later events of the connection are
    /// ignored.
    Close {
        /// The connection.
        conn: ConnId,
    },
    /// Stop or resume receiving messages from a client, because the nodes' queues are long, or short again. A
    /// few more messages that are in flight do no harm.
    Reading {
        /// The client's connection.
        conn: ConnId,
        /// True to receive messages.
        on: bool,
    },
    /// Save this record and report [`Event::Saved`]. The core holds back the messages that tell of it.
    Save(Record),
    /// Obey this order about a file of the spool, after all orders before.
    Spool(SpoolOrder),
    /// Obey this order to a power controller, beside all others, and report its end.
    Power(Box<PowerOrder>),
    /// Send the client of this connection the state that all records so far make ([`backup`](crate::backup)).
    Backup {
        /// The connection.
        conn: ConnId,
    },
    /// Log a line for the operator.
    Log(String),
}

/// The role of a connection's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The peer has not sent its first message.
    New,
    Node(proto::NodeId),
    Client,
}

#[derive(Debug)]
struct Connection {
    role: Role,
    since: Instant,
    peer: String,
    /// The protocol version of the peer, once it has sent its first message.
    version: u16,
    /// The key of the user who has connected.
    user: Option<UserId>,
}

/// The manager.
#[derive(Debug)]
pub struct Core {
    config: Config,
    now: Instant,
    /// The time of the last tick.
    ticked: Instant,
    connections: BTreeMap<ConnId, Connection>,
    identities: Identities,
    commit: Commit,
    /// The reason why this manager may not act: a later one has, and this one's state is older.
    stale: Option<Reason>,
    /// The reason why nothing can be saved at present; `None` while the store works.
    unsaved: Option<Reason>,
    members: Members,
    departures: Departures,
    vouchers: Vouchers,
    names: Directory,
    jobs: Jobs,
    datasets: Datasets,
    history: History,
    clients: Clients,
    users: Users,
    audit: Audit,
    orders: Orders,
    powers: Powers,
    told: Told,
    timelines: Timelines,
    events: Events,
    service: Service,
    images: Images,
    rollout: Rollout,
    /// Present while the cluster is shut down.
    leaving: Option<Leaving>,
    /// True once the manager is about to stop: no job starts any more.
    stopping: bool,
    actions: Vec<Action>,
}

impl Core {
    /// Returns a manager that knows what it has saved. Its members have one lease to resume. `fresh` is a
    /// random secret for a cluster that has none yet.
    #[must_use]
    pub fn new(config: Config, saved: Saved, fresh: VouchingSecret) -> Self {
        let secret = saved.secret.clone().unwrap_or_else(|| fresh.clone());
        let mut core = Self {
            config,
            now: Instant::ZERO,
            ticked: Instant::ZERO,
            connections: BTreeMap::new(),
            identities: Identities::new(&saved),
            commit: Commit::default(),
            stale: None,
            unsaved: None,
            members: Members::default(),
            departures: Departures::default(),
            vouchers: Vouchers::new(secret),
            names: Directory::default(),
            jobs: Jobs::default(),
            datasets: Datasets::default(),
            history: History::default(),
            clients: Clients::default(),
            users: Users::restore(saved.users.clone()),
            audit: Audit::restore(saved.audit.clone()),
            orders: Orders::default(),
            powers: Powers::default(),
            told: Told::default(),
            timelines: Timelines::default(),
            events: Events::default(),
            service: Service::default(),
            images: Images::default(),
            rollout: Rollout::default(),
            leaving: None,
            stopping: false,
            actions: Vec::new(),
        };
        if saved.secret.is_none() {
            core.save(vec![Record::Secret(fresh)]);
        }
        core.restore(saved);
        core
    }

    /// Replaces the rules of the cluster.
    pub fn reconfigure(&mut self, rules: Rules) {
        self.config.rules = rules;
        // The next tick applies them.
        self.expire_spool();
    }

    /// Handles an event and returns the resulting actions, in order. `now` never decreases.
    #[must_use]
    pub fn handle(&mut self, now: Instant, event: Event<'_>) -> Vec<Action> {
        self.now = self.now.max(now);
        match event {
            Event::Opened { conn, peer } => {
                let connection = Connection {
                    role: Role::New,
                    since: self.now,
                    peer: peer.into(),
                    version: PROTOCOL_VERSION,
                    user: None,
                };
                self.connections.insert(conn, connection);
            }
            Event::Identified { conn, user } => {
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.user = Some(user);
                }
            }
            Event::Received { conn, bytes } => self.received(conn, bytes),
            Event::Sent { conn, bulk } => self.sent(conn, bulk),
            Event::Closed { conn, reason } => self.closed(conn, reason),
            Event::Saved { record } => self.saved(record),
            Event::SaveFailed { reason } => self.save_failed(reason),
            Event::Spool { report } => self.spool_told(report),
            Event::Power { report } => self.power_told(report),
            Event::Tick => self.tick(),
            Event::Stop => self.stop(),
        }
        self.end_idle_drains();
        std::mem::take(&mut self.actions)
    }

    /// Returns the time at which [`Event::Tick`] is due if no other event comes first.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let hello = self
            .connections
            .values()
            .filter(|connection| connection.role == Role::New)
            .map(|connection| connection.since + self.config.hello)
            .min();
        let leaving = self.leaving.as_ref().map(|leaving| leaving.since + self.config.leave);
        let (clients, jobs) = (self.clients.next_deadline(), self.jobs.next_deadline(&self.config));
        let orders = self.next_order_deadline();
        let (members, drains) = (self.members.next_expiry(), self.service.next_deadline());
        let rollout = self.rollout.next_deadline();
        let waits = self.history.next_deadline();
        let all = [hello, leaving, members, clients, jobs, orders, drains, rollout, waits];
        let next = all.into_iter().flatten().min();
        // While any deadline is pending, ticks are frequent enough to show when the manager was deaf.
        next.map(|next| next.min(self.ticked + self.config.lease / TICKS_PER_LEASE))
    }

    fn tick(&mut self) {
        let late = (self.now - self.ticked).saturating_sub(self.config.lease / TICKS_PER_LEASE);
        self.ticked = self.now;
        let mut save = Vec::new();
        self.identities.reserve_time(self.now, &mut save);
        self.save(save);
        if !late.is_zero() {
            self.forgive(late);
        }
        self.expire();
        self.observe_jobs();
    }

    /// Moves all deadlines by `late`, the time for which the manager was deaf.
    fn forgive(&mut self, late: Duration) {
        let now = self.now;
        let later = |since: &mut Instant| *since = (*since + late).min(now);
        self.connections.values_mut().for_each(|connection| later(&mut connection.since));
        self.members.forgive(now, late, self.config.lease);
        self.clients.forgive(later);
        self.jobs.forgive(later);
        self.orders.forgive(later);
        self.service.forgive(late);
        self.rollout.forgive(late);
        self.leaving.iter_mut().for_each(|leaving| later(&mut leaving.since));
    }

    fn received(&mut self, conn: ConnId, bytes: &[u8]) {
        let Some(connection) = self.connections.get(&conn) else { return };
        match connection.role {
            Role::New => self.hello(conn, bytes),
            Role::Node(node) => match proto::decode::<ToManager>(bytes) {
                Ok(message) => self.node_says(node, message),
                Err(malformed) => self.remove_member(node, &malformed.to_string()),
            },
            Role::Client => match proto::decode::<FromClient>(bytes) {
                Ok(message) => self.client_says(conn, message),
                Err(malformed) => self.fail_client(conn, malformed.to_string()),
            },
        }
    }

    fn hello(&mut self, conn: ConnId, bytes: &[u8]) {
        match (Hello::peek_version(bytes), proto::decode::<Hello>(bytes)) {
            (Some((kind, version)), _) if !(OLDEST_VERSION..=PROTOCOL_VERSION).contains(&version) => {
                let reason = format!(
                    "{OTHER_VERSION}{version}, but the manager speaks {OLDEST_VERSION} to {PROTOCOL_VERSION}: \
                     use one build"
                );
                match kind {
                    HelloKind::Node => self.refuse_node(conn, "a node", reason),
                    HelloKind::Client => self.fail_client(conn, reason),
                }
            }
            (_, Ok(Hello::Node(join))) => self.join(conn, join),
            (_, Ok(Hello::Resume(resume))) => self.resume(conn, &resume),
            (_, Ok(Hello::Client { version })) => {
                self.set_version(conn, version);
                if let Err(reason) = self.asker(conn) {
                    return self.refuse_client(conn, Refusal::Denied, reason);
                }
                self.set_role(conn, Role::Client);
                self.tell_client(conn, ToClient::Hello);
            }
            (_, Ok(Hello::Unfit { name, reason, .. })) => {
                let (name, reason) = (named(&name), printable(&reason));
                self.log(format!("{}: {name} does not start: {reason}", self.peer(conn)));
                self.close(conn);
            }
            (_, Err(malformed)) => {
                let peer = self.peer(conn);
                self.log(format!("{peer}: {malformed} instead of a hello"));
                self.close(conn);
            }
        }
    }

    fn sent(&mut self, conn: ConnId, bulk: usize) {
        match self.connections.get(&conn).map(|connection| connection.role) {
            Some(Role::Node(node)) if bulk > 0 => self.input_sent(node),
            _ => {}
        }
    }

    fn closed(&mut self, conn: ConnId, reason: &str) {
        match self.connections.remove(&conn).map(|connection| connection.role) {
            Some(Role::Node(node)) => self.fall_silent(node, conn, reason),
            Some(Role::Client) => self.client_gone(conn, reason),
            Some(Role::New) | None => {}
        }
    }

    /// Ends all waits, leases and jobs whose deadline is over.
    fn expire(&mut self) {
        let late: Vec<ConnId> = self
            .connections
            .iter()
            .filter(|(_, c)| c.role == Role::New && c.since + self.config.hello <= self.now)
            .map(|(&conn, _)| conn)
            .collect();
        for conn in late {
            let peer = self.peer(conn);
            self.log(format!("{peer}: sent no message in time"));
            self.close(conn);
        }
        self.spare_unanswered();
        for node in self.members.expired(self.now) {
            self.remove_member(node, "lease expired");
        }
        self.expire_jobs();
        self.expire_waits();
        if self.history.is_due(self.now) {
            self.expire_history();
        }
        self.expire_clients();
        self.expire_orders();
        self.expire_drains();
        self.advance_rollout();
    }

    fn millis_since(&self, since: Instant) -> u64 {
        u64::try_from((self.now - since).as_millis()).unwrap_or(u64::MAX)
    }

    fn set_role(&mut self, conn: ConnId, role: Role) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.role = role;
        }
    }

    fn set_version(&mut self, conn: ConnId, version: u16) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.version = version;
        }
    }

    /// Returns the present time, in milliseconds since the beginning of 1970 (UTC).
    fn unix_ms(&self) -> u64 {
        let time = self.config.wall + (self.now - Instant::ZERO);
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the protocol version of a peer.
    fn version(&self, conn: ConnId) -> u16 {
        self.connections.get(&conn).map_or(OLDEST_VERSION, |connection| connection.version)
    }

    /// Returns the user and the address of a peer, for people.
    fn peer(&self, conn: ConnId) -> String {
        match self.asker(conn) {
            Ok((name, _)) if !name.is_empty() => format!("{name} at {}", self.address(conn)),
            _ => self.address(conn),
        }
    }

    fn address(&self, conn: ConnId) -> String {
        self.connections.get(&conn).map_or_else(|| "a former connection".into(), |c| c.peer.clone())
    }

    /// Returns true if the node at a connection knows this message: its release may be the former one.
    fn knows(&self, conn: ConnId, message: &ToNode) -> bool {
        message.since() <= self.version(conn)
    }

    fn tell_node(&mut self, conn: ConnId, message: ToNode) {
        if !self.knows(conn, &message) {
            return;
        }
        self.actions.push(Action::Send { conn, message: Message::ToNode(message) });
    }

    fn tell_client(&mut self, conn: ConnId, message: ToClient) {
        self.audit_answer(conn, &message);
        self.actions.push(Action::Send { conn, message: Message::ToClient(message) });
    }

    fn refuse_node(&mut self, conn: ConnId, who: &str, reason: Reason) {
        let peer = self.peer(conn);
        self.log(format!("{peer}: refused {who}: {reason}"));
        self.tell_node(conn, ToNode::Refused { reason });
        self.close(conn);
    }

    fn close(&mut self, conn: ConnId) {
        self.connections.remove(&conn);
        self.clients.forget(conn);
        self.audit_unanswered(conn, "not answered");
        self.forget_order_of(conn);
        self.actions.push(Action::Close { conn });
    }

    fn log(&mut self, line: String) {
        self.log_for(UserRole::Viewer, line);
    }

    /// Logs a line that only a role and higher ones read among the events.
    fn log_for(&mut self, least: UserRole, line: String) {
        self.events.add(self.now, &line, least);
        self.actions.push(Action::Log(line));
    }

    fn saved(&mut self, record: &Record) {
        self.identities.saved(record);
        self.release_held();
        if self.unsaved.take().is_some() {
            self.log("the state is saved again: new nodes and jobs are accepted".into());
        }
    }

    fn save_failed(&mut self, reason: &str) {
        let reason = proto::printable(reason);
        if self.unsaved.as_ref() != Some(&reason) {
            self.log(format!("cannot save the state, and refuses new nodes and jobs until it can: {reason}"));
            self.unsaved = Some(reason);
        }
    }

    /// Returns the reason why no new work may begin: its records could not be saved, or the state is old.
    fn store_objection(&self) -> Option<Reason> {
        if let Some(stale) = &self.stale {
            return Some(stale.clone());
        }
        self.unsaved.as_ref().map(|why| format!("the manager cannot save its state: {why}"))
    }
}
