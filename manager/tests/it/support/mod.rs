//! The core on a virtual clock. A test holds the other ends of its connections.
#![allow(dead_code, reason = "each test file uses a part of it")]

use manager::core::{Action, Config, ConnId, Core, Event, MemorySpool, Message, PowerOrder, Record, Saved};
use platform::{Instant, IoAddr};
use proto::channel::MAX_MESSAGE;
use proto::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use verbs::{Gid, LinkKind, MacAddr, MemoryKey, PathMtu, RemoteKey};

pub(crate) struct Harness {
    pub core: Core,
    pub now: Instant,
    /// The messages that were sent and that no test has read yet.
    pub sent: BTreeMap<ConnId, Vec<Message>>,
    pub closed: BTreeSet<ConnId>,
    /// The clients whose messages are not received.
    pub paused: BTreeSet<ConnId>,
    pub saved: Vec<Record>,
    /// The number of those that are on the disk.
    on_disk: usize,
    /// The state that the manager has found.
    found: Saved,
    pub log: Vec<String>,
    /// The files of the spool. Orders are obeyed at once.
    pub spool: MemorySpool,
    /// The orders to power controllers.
    pub powers: Vec<PowerOrder>,
    /// True if messages are handed to the network at once.
    pub prompt: bool,
    /// True if records are on the disk at once.
    pub saves: bool,
    next: u64,
}

impl Harness {
    pub(crate) fn new() -> Self {
        Self::with(Config::default(), Saved::default())
    }

    pub(crate) fn with(config: Config, saved: Saved) -> Self {
        Self {
            found: saved.clone(),
            core: Core::new(config, saved, VouchingSecret::from_bytes([7; 32])),
            on_disk: 0,
            now: Instant::ZERO,
            sent: BTreeMap::new(),
            closed: BTreeSet::new(),
            paused: BTreeSet::new(),
            saved: Vec::new(),
            log: Vec::new(),
            spool: MemorySpool::default(),
            powers: Vec::new(),
            prompt: true,
            saves: true,
            next: 0,
        }
    }

    /// Returns the state that the store has: the records that it saved before the manager began, and those
    /// of the manager.
    pub(crate) fn restart(&self) -> Saved {
        let mut saved = Saved { spool: self.spool.found(), ..self.found.clone() };
        for record in self.found.reservation().iter().chain(&self.saved[..self.on_disk]) {
            match record.clone() {
                Record::Node(name, node) => saved.nodes.push((name, node)),
                Record::Forget(name) => saved.nodes.retain(|(known, _)| *known != name),
                Record::NextIncarnation(next) => saved.next_incarnation = next,
                Record::NextJob(next) => saved.next_job = next,
                Record::Epoch(epoch) => saved.epoch = epoch,
                Record::Clock(time) => saved.clock = time,
                Record::Secret(secret) => saved.secret = Some(secret),
                Record::Member(member) => {
                    saved.members.retain(|other| other.node != member.node);
                    saved.members.push(*member);
                }
                Record::Left(node, incarnation) => {
                    saved.members.retain(|member| member.node != node);
                    saved.departures.push((node, incarnation));
                }
                Record::Settled(node, incarnation) => {
                    saved.departures.retain(|ended| *ended != (node, incarnation));
                }
                Record::Name(name) => saved.names.push(name),
                Record::Unname(name) => saved.names.retain(|known| known.name != name),
                Record::Job(job) => {
                    saved.jobs.retain(|other| other.job != job.job);
                    saved.jobs.push((*job).clone());
                }
                Record::JobGone(job) => saved.jobs.retain(|other| other.job != job),
                Record::Dataset(dataset) => saved.datasets.push(dataset),
                Record::DatasetGone(name) => saved.datasets.retain(|known| known.name != name),
                Record::Withdrawn(node) => {
                    saved.withdrawn.retain(|other| other.name != node.name);
                    saved.withdrawn.push(node);
                }
                Record::InService(name) => saved.withdrawn.retain(|known| known.name != name),
                Record::Image(image) => saved.images.push(image),
                Record::ImageGone(sha256) => saved.images.retain(|known| known.info.sha256 != sha256),
                Record::Rollout(status) => saved.rollout = Some(*status),
                Record::User(user) => {
                    saved.users.retain(|known| known.name != user.name);
                    saved.users.push(user);
                }
                Record::UserGone(name) => saved.users.retain(|known| known.name != name),
                Record::Audit(entry) => saved.audit.push(entry),
                Record::AuditGone(number) => saved.audit.retain(|entry| entry.number != number),
                Record::Ended(ended) => {
                    saved.history.retain(|other| other.job != ended.job);
                    saved.history.push((*ended).clone());
                }
                Record::EndedGone(job) => saved.history.retain(|other| other.job != job),
            }
        }
        saved
    }

    pub(crate) fn event(&mut self, event: Event<'_>) {
        let (mut bulks, mut saved, mut reports) = (Vec::new(), Vec::new(), Vec::new());
        for action in self.core.handle(self.now, event) {
            match action {
                Action::Send { conn, message } => {
                    assert!(!self.closed.contains(&conn), "a message to a closed connection: {message:?}");
                    assert!(message.encode().len() <= MAX_MESSAGE, "no connection takes so long a message");
                    bulks.push((conn, message.bulk()));
                    self.sent.entry(conn).or_default().push(message);
                }
                Action::Close { conn } => assert!(self.closed.insert(conn), "closed twice"),
                Action::Reading { conn, on: true } => assert!(self.paused.remove(&conn)),
                Action::Reading { conn, on: false } => assert!(self.paused.insert(conn)),
                Action::Save(record) => {
                    if self.saves {
                        saved.push(record.clone());
                    }
                    self.saved.push(record);
                }
                Action::Spool(order) => reports.extend(self.spool.obey(order)),
                Action::Power(order) => self.powers.push(*order),
                Action::Backup { .. } => {}
                Action::Log(line) => {
                    assert!(!line.contains('\n'));
                    self.log.push(line);
                }
            }
        }
        for record in &saved {
            self.on_disk += 1;
            self.event(Event::Saved { record });
        }
        for report in &reports {
            self.event(Event::Spool { report });
        }
        if self.prompt {
            for (conn, bulk) in bulks.into_iter().filter(|(_, bulk)| *bulk > 0) {
                self.event(Event::Sent { conn, bulk });
            }
        }
    }

    /// Ends a time in which the disk saved nothing: it saves all that waits.
    pub(crate) fn disk_works_again(&mut self) {
        self.saves = true;
        let waiting: Vec<Record> = self.saved[self.on_disk..].to_vec();
        for record in &waiting {
            self.on_disk += 1;
            self.event(Event::Saved { record });
        }
    }

    /// Advances the time in steps that meet the core's own deadlines.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.core.next_deadline().filter(|&due| due <= end) {
            self.now = self.now.max(due);
            self.event(Event::Tick);
            assert!(self.core.next_deadline().is_none_or(|next| next > due), "a tick meets its deadline");
        }
        self.now = end;
    }

    pub(crate) fn open(&mut self) -> ConnId {
        self.next += 1;
        let conn = ConnId(self.next);
        self.event(Event::Opened { conn, peer: "test" });
        conn
    }

    pub(crate) fn say<M: serde::Serialize>(&mut self, conn: ConnId, message: &M) {
        self.event(Event::Received { conn, bytes: &encode(message) });
    }

    /// Reports the death of a node.
    pub(crate) fn dies(&mut self, conn: ConnId) {
        self.say(conn, &ToManager::LastWords { reason: "a test".into() });
    }

    /// Sends a request of a new client, and returns the answer.
    pub(crate) fn ask(&mut self, request: &FromClient) -> ToClient {
        let client = self.client();
        self.say(client, request);
        let mut answers = self.client_heard(client);
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers.remove(0)
    }

    /// Returns the reason of the refusal of a request.
    pub(crate) fn refusal(&mut self, request: &FromClient) -> String {
        match self.ask(request) {
            ToClient::Failed { reason } | ToClient::Refused { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    }

    /// Returns all nodes by name.
    pub(crate) fn node_list(&mut self) -> Vec<NodeView> {
        match self.ask(&FromClient::NodeList { after: String::new() }) {
            ToClient::NodeList { nodes, more: false } => nodes,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn drop(&mut self, conn: ConnId) {
        self.event(Event::Closed { conn, reason: "connection lost" });
    }

    /// Returns the messages that a node has been sent since the last call, but for those by which it forgets
    /// parts of jobs, and the question for its image.
    pub(crate) fn node_heard(&mut self, conn: ConnId) -> Vec<ToNode> {
        let mut heard = self.all_heard(conn);
        heard.retain(|message| !matches!(message, ToNode::JobForget { .. } | ToNode::AskImage));
        heard
    }

    /// Returns all messages that a node has been sent since the last call.
    pub(crate) fn all_heard(&mut self, conn: ConnId) -> Vec<ToNode> {
        let take = |message| match message {
            Message::ToNode(message) => message,
            Message::ToNodes(bytes) => decode(&bytes).unwrap(),
            Message::ToClient(message) => panic!("to a node: {message:?}"),
        };
        self.sent.remove(&conn).unwrap_or_default().into_iter().map(take).collect()
    }

    /// Returns the messages that a client has been sent since the last call.
    pub(crate) fn client_heard(&mut self, conn: ConnId) -> Vec<ToClient> {
        let take = |message| match message {
            Message::ToClient(message) => message,
            other => panic!("to a client: {other:?}"),
        };
        self.sent.remove(&conn).unwrap_or_default().into_iter().map(take).collect()
    }

    /// Joins, and returns the connection and the first answer.
    pub(crate) fn try_join(&mut self, join: Join) -> (ConnId, ToNode) {
        let conn = self.open();
        self.say(conn, &Hello::Node(join));
        let mut answers = self.node_heard(conn);
        let answer = answers.remove(0);
        // A job of the queue may start on the node at once, and a node out of service is told to accept no
        // region: the test may read that later.
        let later: Vec<Message> = answers.into_iter().map(Message::ToNode).collect();
        assert!(later.is_empty() || matches!(answer, ToNode::Welcome(_)), "{later:?}");
        self.sent.extend((!later.is_empty()).then_some((conn, later)));
        (conn, answer)
    }

    pub(crate) fn join(&mut self, name: &str) -> (ConnId, Welcome) {
        self.join_with(join(name))
    }

    /// Joins a node that asks for the id that its name had before.
    pub(crate) fn join_keeping(&mut self, name: &str) -> (ConnId, Welcome) {
        self.join_with(Join { keep_id: true, ..join(name) })
    }

    fn join_with(&mut self, wish: Join) -> (ConnId, Welcome) {
        match self.try_join(wish) {
            (conn, ToNode::Welcome(welcome)) => (conn, welcome),
            (_, other) => panic!("{other:?}"),
        }
    }

    /// Resumes a membership on a new connection, as a node of the present version.
    pub(crate) fn resumes(&mut self, welcome: &Welcome) -> ConnId {
        let Welcome { node, incarnation, epoch, .. } = *welcome;
        let secret = welcome.secret.clone();
        let conn = self.open();
        self.say(
            conn,
            &Hello::Resume(Resume { version: PROTOCOL_VERSION, node, incarnation, secret, epoch }),
        );
        self.say(conn, &ToManager::Jobs { jobs: Vec::new(), kept: Vec::new() });
        conn
    }

    pub(crate) fn client(&mut self) -> ConnId {
        let conn = self.open();
        self.say(conn, &Hello::Client { version: PROTOCOL_VERSION });
        assert_eq!(self.client_heard(conn), [ToClient::Hello]);
        conn
    }

    /// Returns the reason of the refusal in a client's last message before its connection was closed.
    pub(crate) fn failure(&mut self, client: ConnId) -> String {
        assert!(self.closed.contains(&client));
        match self.client_heard(client).pop() {
            Some(ToClient::Failed { reason } | ToClient::Refused { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    }
}

/// Makes a node's join message. The Ethernet address is derived from the name.
pub(crate) fn join(name: &str) -> Join {
    let mut mac = [2u8, 0, 0, 0, 0, 0];
    for (i, byte) in name.bytes().enumerate() {
        let at = 1 + i % 5;
        mac[at] = mac[at].wrapping_mul(31).wrapping_add(byte);
    }
    Join {
        version: PROTOCOL_VERSION,
        name: name.into(),
        keep_id: false,
        rnic: RnicOffer {
            driver: "softroce".into(),
            links: vec![LinkKind::RoceV2, LinkKind::RoceV1],
            mac: MacAddr(mac),
            gid: None::<Gid>,
            lid: 0,
            mtu: PathMtu::B1024,
            max_rd_atomic: 16,
            key: MemoryKey { rkey: RemoteKey(7), base: IoAddr(0), len: 64 << 20 },
            physical: true,
        },
        memory: 64 << 20,
        memory_free: 48 << 20,
        cpus: 1,
        apps: vec![lines()],
        boot: BootReport { stages: vec![("entry".into(), 10), ("joined".into(), 5000)] },
        boot_id: 0,
    }
}

/// An application whose records are lines.
pub(crate) fn lines() -> AppManifest {
    AppManifest { name: "lines".into(), about: "for tests".into(), cut: CutRule::after(|b| b == b'\n') }
}

pub(crate) fn submit(nodes: u16, lens: &[u64]) -> FromClient {
    FromClient::Submit(request(nodes, lens))
}

/// Returns a request of a job with input files of these lengths.
pub(crate) fn request(nodes: u16, lens: &[u64]) -> JobRequest {
    let file = |(i, &len): (usize, &u64)| InputFile { name: format!("f{i}"), len };
    let inputs = lens.iter().enumerate().map(file).collect();
    JobRequest { app: "lines".into(), args: vec!["x".into()], nodes, inputs, ..JobRequest::default() }
}
