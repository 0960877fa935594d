//! The core, the connections to it, and the model's updates from each action.

use crate::Report;
use crate::check;
use crate::peers::{Client, Node, Part, Peer};
use manager::core::{
    Action, Config, ConnId, Core, Event, MemorySpool, Message, Record, Saved, SpoolPart, SpoolReport,
};
use platform::Instant;
use proto::channel::MAX_MESSAGE;
use proto::{
    DatasetStatus, Hello, Incarnation, JobId, Join, NodeId, PROTOCOL_VERSION, ToClient, ToNode,
    VouchingSecret, Welcome,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub(crate) const LEASE: Duration = Duration::from_secs(5);
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The limit on the input of one job that waits in the core, in charges.
pub(crate) const JOB_WINDOW: u64 = 150_000;
/// The maximum length of one message of input, in bytes.
pub(crate) const PIECE: u64 = 48 << 10;

/// The longest time between two ticks in which the manager counts as able to hear.
const HEARS: Duration = LEASE.checked_div(8).expect("not zero");

/// The core and the model.
pub(crate) struct World {
    core: Core,
    /// The content of the manager's disk.
    disk: Saved,
    pub now: Instant,
    /// The time at which the present process of the manager has started.
    born: Instant,
    /// The time of the last tick, and the time up to then in which the manager was able to hear.
    ticked: Instant,
    heard_until_tick: Duration,
    pub peers: BTreeMap<ConnId, Peer>,
    /// The members without a connection. They do not resume.
    pub silent: BTreeMap<NodeId, Node>,
    /// The names and the versions of the nodes that asked to join, by connection.
    joining: BTreeMap<ConnId, (String, u16)>,
    /// The node that has bound each name.
    pub names: BTreeMap<String, NodeId>,
    /// Incarnations that have ended, with the values of [`hearing`](Self::hearing) at their last heartbeats.
    dead: BTreeMap<(NodeId, Incarnation), Duration>,
    /// Connections that were told of a failure and must end within the same event.
    failed: BTreeSet<ConnId>,
    last_incarnation: Incarnation,
    /// The highest number of a job so far, and the highest one before the manager's last restart.
    last_job: JobId,
    last_job_before: JobId,
    /// The number of the last binding of a name, and that of the last request of a node.
    pub last_binding: u64,
    pub last_request: u32,
    /// Records to be saved.
    unsaved: VecDeque<Record>,
    /// The files of the spool, and the reports about them that the manager has not heard.
    spool: MemorySpool,
    spooled: VecDeque<SpoolReport>,
    last_conn: u64,
    most_peers: u64,
    /// Messages that the last event caused.
    heard: Vec<(ConnId, ToNode)>,
    pub report: Report,
}

impl World {
    pub(crate) fn new() -> Self {
        let mut disk = Saved::default();
        Self {
            core: start(&mut disk),
            disk,
            now: Instant::ZERO,
            born: Instant::ZERO,
            ticked: Instant::ZERO,
            heard_until_tick: Duration::ZERO,
            peers: BTreeMap::new(),
            silent: BTreeMap::new(),
            joining: BTreeMap::new(),
            names: BTreeMap::new(),
            dead: BTreeMap::new(),
            failed: BTreeSet::new(),
            last_incarnation: Incarnation(0),
            last_job: JobId(0),
            last_job_before: JobId(0),
            last_binding: 0,
            last_request: 0,
            unsaved: VecDeque::new(),
            spool: MemorySpool::default(),
            spooled: VecDeque::new(),
            last_conn: 0,
            most_peers: 0,
            heard: Vec::new(),
            report: Report::default(),
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    pub(crate) fn tick(&mut self) {
        self.tick_is_over();
        self.event(Event::Tick);
    }

    fn tick_is_over(&mut self) {
        (self.heard_until_tick, self.ticked) = (self.hearing(), self.now);
    }

    /// Returns the time of the manager's clock.
    pub(crate) fn clock(&self) -> Instant {
        Instant::ZERO + (self.now - self.born)
    }

    /// Returns the sum of the times in which the manager was able to hear. The manager is deaf while it is
    /// suspended and no tick comes.
    pub(crate) fn hearing(&self) -> Duration {
        self.heard_until_tick + (self.now - self.ticked).min(HEARS)
    }

    /// The manager dies and starts again with the content of its disk. All connections have ended, and the
    /// members have one lease from now on.
    pub(crate) fn restart(&mut self) {
        self.born = self.now;
        self.tick_is_over();
        self.disk.spool = self.spool.found();
        self.core = start(&mut self.disk);
        for peer in std::mem::take(&mut self.peers).into_values() {
            self.falls_silent(peer);
        }
        let beat = self.hearing();
        self.silent.values_mut().for_each(|node| node.beat = beat);
        self.joining.clear();
        self.last_job_before = self.last_job;
        self.report.restarts += 1;
    }

    pub(crate) fn open(&mut self) -> ConnId {
        self.last_conn += 1;
        let conn = ConnId(self.last_conn);
        self.peers.insert(conn, Peer::New);
        self.event(Event::Opened { conn, peer: "somewhere" });
        conn
    }

    /// Returns true if a connection goes on.
    pub(crate) fn has(&self, conn: ConnId) -> bool {
        self.peers.contains_key(&conn)
    }

    pub(crate) fn join(&mut self, join: Join) {
        let conn = self.open();
        self.joining.insert(conn, (join.name.clone(), join.version));
        self.say(conn, &Hello::Node(join));
    }

    pub(crate) fn client(&mut self) -> ConnId {
        let conn = self.open();
        self.say(conn, &Hello::Client { version: PROTOCOL_VERSION });
        conn
    }

    /// Returns the jobs without a client that have not ended.
    pub(crate) fn detached(&self) -> Vec<JobId> {
        self.disk.jobs.iter().filter(|job| job.ticket.terms.detach).map(|job| job.first).collect()
    }

    /// Returns the contents of the files of the spool.
    pub(crate) fn spooled_files(&self) -> impl Iterator<Item = SpoolPart> {
        self.spool.files.keys().map(|file| file.part)
    }

    /// Returns true if a job has no client.
    pub(crate) fn is_detached(&self, job: JobId) -> bool {
        self.disk.jobs.iter().any(|known| known.job == job && known.ticket.terms.detach)
    }

    /// Breaks a connection.
    pub(crate) fn drop(&mut self, conn: ConnId) {
        if let Some(peer) = self.peers.remove(&conn) {
            self.falls_silent(peer);
            self.event(Event::Closed { conn, reason: "connection lost" });
        }
    }

    pub(crate) fn say<M: serde::Serialize>(&mut self, conn: ConnId, message: &M) {
        self.event(Event::Received { conn, bytes: &proto::encode(message) });
    }

    pub(crate) fn event(&mut self, event: Event<'_>) {
        self.heard.clear();
        self.report.events += 1;
        self.most_peers = self.most_peers.max((self.peers.len() + self.silent.len()) as u64);
        for action in self.core.handle(self.clock(), event) {
            self.report.actions += 1;
            self.act(action);
        }
        // The disk is quick: each record is saved at once, and so are files of the spool.
        loop {
            let actions = if let Some(record) = self.unsaved.pop_front() {
                keep(&mut self.disk, &record);
                self.core.handle(self.clock(), Event::Saved { record: &record })
            } else if let Some(report) = self.spooled.pop_front() {
                self.core.handle(self.clock(), Event::Spool { report: &report })
            } else {
                break;
            };
            actions.into_iter().for_each(|action| self.act(action));
        }
        assert!(self.failed.is_empty(), "a failure ends the connection");
        check::views(self);
        check::input_that_waits(self);
        let most = self.report.events * (4 * self.most_peers + 8);
        assert!(
            self.report.actions <= most,
            "{} actions of {} events",
            self.report.actions,
            self.report.events
        );
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send { conn, message } => {
                assert!(
                    self.peers.contains_key(&conn),
                    "a message to a connection that has ended: {message:?}"
                );
                let bytes = message.encode();
                assert!(bytes.len() <= MAX_MESSAGE, "too long a message");
                match message {
                    Message::ToClient(message) => self.client_heard(conn, message),
                    Message::ToNode(message) => self.node_heard(conn, message),
                    Message::ToNodes(_) => {
                        let message = proto::decode(&bytes).expect("the core encodes what can be decoded");
                        self.node_heard(conn, message);
                    }
                }
            }
            Action::Close { conn } => {
                let peer = self.peers.remove(&conn).expect("a connection ends once");
                self.failed.remove(&conn);
                if let Peer::Client(client) = &peer {
                    assert!(client.submission.is_none(), "a submission without an end");
                }
                if let Peer::Node(node) = &peer {
                    self.ended(node);
                }
            }
            Action::Reading { conn, on } => match self.peers.get_mut(&conn) {
                Some(Peer::Client(client)) => {
                    assert_eq!(client.paused, on, "only changes are reported");
                    client.paused = !on;
                }
                // The client has disconnected in this event.
                peer => assert!(peer.is_none() && on),
            },
            Action::Save(record) => {
                if let Record::Left(id, incarnation) = record
                    && self.silent.get(&id).is_some_and(|node| node.incarnation == incarnation)
                    && let Some(node) = self.silent.remove(&id)
                {
                    self.ended(&node);
                }
                self.unsaved.push_back(record);
            }
            Action::Spool(order) => self.spooled.extend(self.spool.obey(order)),
            Action::Backup { .. } | Action::Power(_) => {}
            Action::Log(line) => assert!(proto::is_printable(&line), "{line:?}"),
        }
    }

    /// Notes the death of a member.
    fn ended(&mut self, node: &Node) {
        self.names.retain(|_, owner| *owner != node.id);
        self.dead.insert((node.id, node.incarnation), node.beat);
    }

    /// Notes the end of a connection, which ends no membership.
    fn falls_silent(&mut self, peer: Peer) {
        if let Peer::Node(node) = peer {
            self.silent.insert(node.id, *node);
        }
    }

    /// Returns the names of the nodes that are out of service.
    pub(crate) fn withdrawn(&self) -> Vec<String> {
        self.disk.withdrawn.iter().map(|node| node.name.clone()).collect()
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = (ConnId, &Node)> {
        self.peers.iter().filter_map(|(&conn, peer)| match peer {
            Peer::Node(node) => Some((conn, &**node)),
            _ => None,
        })
    }

    pub(crate) fn clients(&self) -> impl Iterator<Item = (ConnId, &Client)> {
        self.peers.iter().filter_map(|(&conn, peer)| match peer {
            Peer::Client(client) => Some((conn, client)),
            _ => None,
        })
    }

    pub(crate) fn node(&mut self, conn: ConnId) -> Option<&mut Node> {
        match self.peers.get_mut(&conn) {
            Some(Peer::Node(node)) => Some(node),
            _ => None,
        }
    }

    pub(crate) fn client_of(&mut self, conn: ConnId) -> Option<&mut Client> {
        match self.peers.get_mut(&conn) {
            Some(Peer::Client(client)) => Some(client),
            _ => None,
        }
    }

    /// Returns the last message that the last event sent to a node.
    pub(crate) fn heard_by(&self, conn: ConnId) -> Option<&ToNode> {
        self.heard.iter().rev().find(|(to, _)| *to == conn).map(|(_, message)| message)
    }

    fn node_heard(&mut self, conn: ConnId, message: ToNode) {
        self.heard.push((conn, message.clone()));
        let version = self.node(conn).map_or(PROTOCOL_VERSION, |node| node.version);
        assert!(message.since() <= version, "a node of version {version} does not know {message:?}");
        match message {
            ToNode::Welcome(welcome) => self.welcome(conn, &welcome),
            ToNode::Refused { .. } => drop(self.failed.insert(conn)),
            ToNode::Joined(member) => {
                let node = self.node(conn).expect("a member");
                assert_eq!(node.others.insert(member.node, member.incarnation), None, "told once");
            }
            ToNode::Left { node, incarnation, reason } => self.left(conn, (node, incarnation), &reason),
            ToNode::Settled { node, incarnation } => {
                let unseen = |(_, n): (ConnId, &Node)| n.unseen.contains(&(node, incarnation));
                assert!(!self.nodes().any(unseen), "settled before all have acknowledged it");
            }
            ToNode::Shutdown => self.node(conn).expect("a member").leaves = true,
            ToNode::Power(_) => self.machine_is_free(conn),
            ToNode::Image(_) => {
                self.machine_is_free(conn);
                self.node(conn).expect("a member").image = Some(0);
            }
            ToNode::ImagePiece { bytes } => {
                let image = self.node(conn).expect("a member").image.as_mut().expect("an image");
                *image += bytes.len() as u64;
            }
            ToNode::ImageDrop => assert!(self.node(conn).expect("a member").image.take().is_some()),
            ToNode::HeartbeatAck { .. }
            | ToNode::Relayed { .. }
            | ToNode::Name { .. }
            | ToNode::MemoryFree { .. }
            | ToNode::Voucher { .. }
            | ToNode::JobForget { .. }
            | ToNode::DropDataset { .. }
            | ToNode::AskImage
            | ToNode::Vacate { .. }
            | ToNode::Check { .. } => {}
            job => self.part_heard(conn, job),
        }
    }

    /// Checks that no order comes to a node that takes part in a job.
    fn machine_is_free(&mut self, conn: ConnId) {
        let node = self.node(conn).expect("a member");
        assert!(node.job.as_ref().is_none_or(|part| part.over), "an order in the middle of a job");
    }

    fn welcome(&mut self, conn: ConnId, welcome: &Welcome) {
        let lives = self.silent.contains_key(&welcome.node);
        let lives = lives || self.nodes().any(|(_, node)| node.id == welcome.node);
        assert!(!lives, "one incarnation at a time");
        assert!(welcome.incarnation > self.last_incarnation, "a later incarnation has a higher number");
        self.last_incarnation = welcome.incarnation;
        self.report.joins += 1;
        let (name, version) = self.joining.remove(&conn).expect("it has asked to join");
        let node = Node {
            id: welcome.node,
            incarnation: welcome.incarnation,
            name,
            version,
            beat: self.hearing(),
            others: welcome.members.iter().map(|m| (m.node, m.incarnation)).collect(),
            unseen: Vec::new(),
            job: None,
            mute: false,
            leaves: false,
            image: None,
        };
        self.peers.insert(conn, Peer::Node(Box::new(node)));
    }

    /// Handles a node's notice of the end of an incarnation.
    fn left(&mut self, conn: ConnId, departed: (NodeId, Incarnation), reason: &str) {
        assert!(proto::is_printable(reason));
        if reason == "lease expired" {
            let beat = self.dead.get(&departed).expect("it is dead");
            assert!(self.hearing() - *beat >= LEASE, "the manager was able to hear it for less than a lease");
            self.report.expired += 1;
        }
        let node = self.node(conn).expect("a member");
        assert_eq!(node.others.remove(&departed.0), Some(departed.1), "it knew that incarnation");
        node.unseen.push(departed);
    }

    /// Handles a message about a job.
    fn part_heard(&mut self, conn: ConnId, message: ToNode) {
        if let ToNode::JobInputEnd { job } = &message {
            check::all_input_is_out(self, *job);
        }
        if let ToNode::JobStart(start) = &message {
            // A job without a client that has waited over a restart keeps the number of its submission.
            let is_new = start.job > self.last_job_before || self.is_detached(start.job);
            assert!(is_new, "no job has the number of another");
            self.last_job = self.last_job.max(start.job);
        }
        let node = self.node(conn).expect("a member");
        if let ToNode::JobStart(start) = message {
            assert!(node.job.as_ref().is_none_or(|part| part.over), "its part of the job before is not over");
            let first = start.nodes.first() == Some(&node.id);
            assert!(start.nodes.contains(&node.id));
            node.job = Some(Part {
                job: start.job,
                first,
                accepted: false,
                credit: 0,
                got: 0,
                got_bytes: 0,
                input_ended: false,
                cancelled: false,
                over: false,
                output: 0,
                unacknowledged: 0,
            });
            self.report.jobs += u64::from(first);
            return;
        }
        let part = node.job.as_mut().expect("a job");
        match message {
            ToNode::JobInput { job, bytes, .. } => {
                assert!(part.job == job && part.accepted && !part.cancelled && !part.input_ended);
                part.got += ToNode::input_charge(bytes.len());
                part.got_bytes += bytes.len() as u64;
                assert!(part.got <= part.credit, "more than it was ready to take");
            }
            ToNode::JobInputEnd { job } => {
                assert!(part.job == job && !part.cancelled && !part.input_ended);
                part.input_ended = true;
            }
            ToNode::JobOutputAck { job, bytes } => {
                assert_eq!(part.job, job);
                let bytes = usize::try_from(bytes).expect("a small number");
                let left = part.output.checked_sub(bytes).expect("no more than it gave");
                assert!(left < part.unacknowledged, "each acknowledgement tells of more output");
                part.unacknowledged = left;
            }
            ToNode::JobCancel { job, reason } => {
                assert!(part.job == job && !part.cancelled && !part.over && proto::is_printable(&reason));
                part.cancelled = true;
            }
            other => panic!("{other:?}"),
        }
    }

    fn client_heard(&mut self, conn: ConnId, message: ToClient) {
        assert!(!self.failed.contains(&conn), "nothing comes after a failure");
        if message == ToClient::Hello {
            self.peers.insert(conn, Peer::Client(Client::default()));
            return;
        }
        if let ToClient::Failed { reason } | ToClient::Refused { reason, .. } = &message {
            assert!(proto::is_printable(reason), "{reason:?}");
            self.failed.insert(conn);
        }
        if let ToClient::Datasets(datasets) = &message {
            let here =
                |id: &NodeId| self.silent.contains_key(id) || self.nodes().any(|(_, node)| node.id == *id);
            let whole = |dataset: &DatasetStatus| dataset.nodes.iter().all(here);
            assert!(datasets.iter().all(whole), "a dataset outlives a node: {datasets:?}");
            assert!(datasets.is_sorted_by_key(|dataset| dataset.name.clone()));
        }
        let Some(Peer::Client(client)) = self.peers.get_mut(&conn) else { return };
        match message {
            ToClient::Accepted { job, nodes } => {
                assert!(!nodes.is_empty());
                let submission = client.submission.as_mut().expect("a submission");
                let former = submission.job.replace(job);
                assert!(former.is_none_or(|former| former < job), "accepted again under another number");
                // The job starts again: its former output does not count.
                (submission.left, submission.sent, client.taken) = (submission.total, 0, 0);
            }
            ToClient::Progress { phase, .. } => assert!(proto::is_printable(&phase) && phase.len() <= 32),
            ToClient::Output { bytes } => client.taken += bytes.len() as u64,
            ToClient::Report { report, .. } => assert_eq!(report.check(), Ok(())),
            ToClient::Done { .. } => {
                if client.submission.take().is_some() {
                    self.report.done += 1;
                }
            }
            ToClient::Failed { .. } | ToClient::Refused { .. } => {
                client.waits = false;
                if client.submission.take().is_some() {
                    self.report.failed += 1;
                }
            }
            ToClient::Nodes { nodes, .. } => {
                client.waits = false;
                assert!(nodes.is_sorted_by_key(|status| status.node));
            }
            ToClient::Hello
            | ToClient::Jobs(_)
            | ToClient::Cancelled { .. }
            | ToClient::Datasets(_)
            | ToClient::Dropped { .. }
            | ToClient::ImageTaken { .. }
            | ToClient::NodeList { .. }
            | ToClient::NodeChanged { .. }
            | ToClient::ImageAdded(_)
            | ToClient::Images(_)
            | ToClient::ImageRemoved
            | ToClient::Rollout(_)
            | ToClient::NodeLeft
            | ToClient::You { .. }
            | ToClient::Users(_)
            | ToClient::UserChanged
            | ToClient::Audit { .. }
            | ToClient::Powered { .. }
            | ToClient::Inventory { .. }
            | ToClient::Support { .. }
            | ToClient::Backup { .. } => {}
            ToClient::Queued { .. } => {
                client.submission.iter_mut().for_each(|submission| submission.queued = true);
            }
            ToClient::InputWanted { job } => {
                let submission = client.submission.as_mut().expect("a submission");
                assert_eq!(submission.job.replace(job), None, "the input is wanted once");
                submission.spools = true;
            }
            ToClient::Submitted { .. } => drop(client.submission.take()),
            ToClient::JobOutput { .. }
            | ToClient::JobLog { .. }
            | ToClient::JobList { .. }
            | ToClient::JobShown(_)
            | ToClient::JobShownWith { .. } => {}
        }
    }
}

/// Starts a manager with the content of a disk, on which the numbers that it may use are reserved first.
fn start(disk: &mut Saved) -> Core {
    let config = Config {
        lease: LEASE,
        reply_timeout: ANSWER_TIMEOUT,
        leave: Duration::from_secs(5),
        ending: Duration::from_secs(4),
        input_window: 100_000,
        job_window: JOB_WINDOW,
        ..Config::default()
    };
    let saved = disk.clone();
    saved.reservation().iter().for_each(|record| keep(disk, record));
    Core::new(config, saved, VouchingSecret::from_bytes([7; 32]))
}

/// Writes a record to a disk.
fn keep(disk: &mut Saved, record: &Record) {
    match record {
        Record::Node(name, node) => {
            disk.nodes.retain(|(known, _)| known != name);
            disk.nodes.push((name.clone(), *node));
        }
        Record::Forget(name) => disk.nodes.retain(|(known, _)| known != name),
        Record::NextIncarnation(next) => disk.next_incarnation = *next,
        Record::NextJob(next) => disk.next_job = *next,
        Record::Epoch(epoch) => disk.epoch = *epoch,
        Record::Clock(time) => disk.clock = *time,
        Record::Secret(secret) => disk.secret = Some(secret.clone()),
        Record::Member(member) => {
            disk.members.retain(|known| known.node != member.node);
            disk.members.push((**member).clone());
        }
        Record::Left(node, incarnation) => {
            disk.members.retain(|known| known.node != *node);
            disk.departures.push((*node, *incarnation));
        }
        Record::Settled(node, incarnation) => {
            disk.departures.retain(|departed| *departed != (*node, *incarnation));
        }
        Record::Name(name) => {
            disk.names.retain(|known| known.name != name.name);
            disk.names.push(name.clone());
        }
        Record::Unname(name) => disk.names.retain(|known| known.name != *name),
        Record::Job(job) => {
            disk.jobs.retain(|known| known.job != job.job);
            disk.jobs.push((**job).clone());
        }
        Record::JobGone(job) => disk.jobs.retain(|known| known.job != *job),
        Record::Dataset(dataset) => {
            disk.datasets.retain(|known| known.name != dataset.name);
            disk.datasets.push(dataset.clone());
        }
        Record::DatasetGone(name) => disk.datasets.retain(|known| known.name != *name),
        Record::Withdrawn(node) => {
            disk.withdrawn.retain(|known| known.name != node.name);
            disk.withdrawn.push(node.clone());
        }
        Record::InService(name) => disk.withdrawn.retain(|known| known.name != *name),
        Record::Image(image) => disk.images.push(image.clone()),
        Record::ImageGone(sha256) => disk.images.retain(|known| known.info.sha256 != *sha256),
        Record::Rollout(status) => disk.rollout = Some((**status).clone()),
        Record::User(user) => {
            disk.users.retain(|known| known.name != user.name);
            disk.users.push(user.clone());
        }
        Record::UserGone(name) => disk.users.retain(|known| known.name != *name),
        Record::Audit(entry) => disk.audit.push(entry.clone()),
        Record::AuditGone(number) => disk.audit.retain(|entry| entry.number != *number),
        Record::Ended(ended) => {
            disk.history.retain(|known| known.job != ended.job);
            disk.history.push((**ended).clone());
        }
        Record::EndedGone(job) => disk.history.retain(|known| known.job != *job),
    }
}
