//! Nodes, wire and manager together.

use crate::manager::{ControlLinks, Heart, Link, Socket};
use crate::nic::Plugged;
use crate::{Nics, SimManager, Trace, Wire};
use lite::testing::{Host, Poller, World};
use lite::{Config, Lite};
use netfault::Faults;
use platform::{ControlLink, Instant, IoAddr, Platform};
use proto::{AppManifest, BootReport, Hello, Join, PROTOCOL_VERSION, RnicOffer, ToNode, Welcome};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use verbs::{MacAddr, PathMtu, Rnic};

/// What a cluster is made with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Decides everything that chance does.
    pub seed: u64,
    /// How many.
    pub nodes: u16,
    /// What they have for RNICs.
    pub nics: Nics,
    /// Bytes of memory of each.
    pub memory: u64,
    /// How long a member lives without a heartbeat.
    pub lease: Duration,
    /// What the wire does.
    pub faults: Faults,
    /// What the control connections are.
    pub control: ControlLinks,
    /// Whether nodes ask for the id that their name had before.
    pub keep_ids: bool,
    /// The applications that nodes say they have.
    pub apps: Vec<AppManifest>,
    /// By how many millionths the clock of a node may be fast or slow.
    pub drift: i32,
    /// LITE's configuration.
    pub config: Config,
}

impl Default for Options {
    fn default() -> Self {
        let config = Config { ack_timeout: Duration::from_millis(2), ..Config::default() };
        let faults = Faults { delay_ns: 5_000, ..Faults::NONE };
        let lease = Duration::from_secs(1);
        Self {
            seed: 1,
            nodes: 4,
            nics: Nics::default(),
            memory: 8 << 20,
            lease,
            faults,
            control: ControlLinks::INSTANT,
            keep_ids: false,
            apps: Vec::new(),
            drift: 0,
            config,
        }
    }
}

/// A simulated cluster.
pub struct Cluster {
    /// The executor.
    pub world: World,
    /// The network.
    pub wire: Arc<Wire>,
    /// The manager.
    pub manager: Arc<SimManager>,
    /// All that happened.
    pub trace: Arc<Trace>,
    options: Options,
    nodes: Vec<Machine>,
    /// Machines that have begun to join, and how many there were so far.
    newcomers: Vec<Newcomer>,
    machines: u16,
}

struct Machine {
    host: Arc<Host>,
    lite: Lite,
    plugged: Plugged,
    mac: MacAddr,
    name: String,
    link: Arc<Link>,
}

/// A machine that is up and no member.
struct Newcomer {
    host: Arc<Host>,
    plugged: Plugged,
    join: Join,
    attempt: Attempt,
}

enum Attempt {
    /// It has said hello at a time of its own clock.
    Asking(Socket, Instant),
    /// It tries again at a true time.
    Waiting(Instant),
}

/// How long a machine waits when it was refused, or found no manager.
const AGAIN: Duration = Duration::from_millis(200);
/// How long a machine waits for an answer.
const JOIN_LIMIT: Duration = Duration::from_secs(5);

impl Cluster {
    /// All nodes join, and know each other.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let mut world = World::new(options.seed);
        let trace = Arc::new(Trace::default());
        let wire = Wire::new(options.faults, options.seed, trace.clone());
        let clock = world.host(IoAddr(0), 4096);
        let manager = SimManager::new(options.lease, options.control, options.seed, trace.clone(), clock);
        world.attach_free(wire.clone());
        world.attach_free(manager.clone());
        let count = options.nodes;
        let (nodes, newcomers) = (Vec::new(), Vec::new());
        let mut cluster = Self { world, wire, manager, trace, options, nodes, newcomers, machines: 0 };
        for _ in 0..count {
            cluster.join();
        }
        cluster.world.run_for(Duration::from_millis(1));
        let (lites, limit): (Vec<Lite>, _) =
            (cluster.nodes.iter().map(|node| node.lite.clone()).collect(), cluster.world.now() + JOIN_LIMIT);
        let know = || lites.iter().all(|lite| lite.members().len() == lites.len());
        assert!(cluster.world.run_until(limit, know), "not all know each other");
        cluster
    }

    /// One more node joins; gives its position, counted from 1.
    ///
    /// # Panics
    /// If it is refused or cannot start.
    pub fn join(&mut self) -> usize {
        self.begin_join(None);
        let newcomer = self.newcomers.pop().expect("it has begun");
        let Attempt::Asking(socket, _) = &newcomer.attempt else { panic!("there is no manager") };
        let (socket, limit) = (socket.clone(), self.world.now() + JOIN_LIMIT);
        assert!(self.world.run_until(limit, || socket.has_news()), "no answer");
        match self.welcome(newcomer) {
            Ok(node) => node,
            Err(_) => panic!("refused: {:?}", self.manager.log().last()),
        }
    }

    /// A machine begins to join: a new one, or the one of a node that is dead, anew. It tries until it is a member:
    /// [`poll_joins`](Self::poll_joins) goes on with that.
    pub fn begin_join(&mut self, anew: Option<usize>) {
        self.machines += 1;
        let serial = self.machines;
        let [high, low] = serial.to_be_bytes();
        let (mac, name) = match anew {
            Some(node) => (self.nodes[node - 1].mac, self.nodes[node - 1].name.clone()),
            None => (MacAddr([2, 0xfe, 0, 0, high, low]), format!("sim-{serial}")),
        };
        // Each node's memory at another address, so that none is taken for another's.
        let host = self.world.host(IoAddr(u64::from(serial) << 36), self.options.memory);
        if self.options.drift > 0 {
            let spread = 2 * self.options.drift as u64 + 1;
            host.drift((self.world.random() % spread) as i32 - self.options.drift);
        }
        let port = self.wire.port(mac, host.clone());
        let plugged = Plugged::new(self.options.nics.of(serial.into()), mac, port, &host);
        let join = self.wish(&plugged, mac, name, host.memory().range().1);
        let mut newcomer = Newcomer { host, plugged, join, attempt: Attempt::Waiting(Instant::ZERO) };
        self.ask(&mut newcomer);
        self.newcomers.push(newcomer);
    }

    fn wish(&self, plugged: &Plugged, mac: MacAddr, name: String, memory: u64) -> Join {
        let rnic = plugged.rnic();
        let attributes = rnic.attributes();
        let offer = RnicOffer {
            driver: attributes.driver.into(),
            links: attributes.links.to_vec(),
            mac,
            gid: None,
            lid: 0,
            mtu: PathMtu::B1024,
            max_rd_atomic: attributes.max_rd_atomic,
            key: rnic.memory_key(),
            physical: true,
        };
        Join {
            version: PROTOCOL_VERSION,
            name,
            keep_id: self.options.keep_ids,
            rnic: offer,
            memory,
            memory_free: memory,
            cpus: 1,
            apps: self.options.apps.clone(),
            boot: BootReport::default(),
        }
    }

    /// A machine connects and says hello, if the manager runs.
    fn ask(&self, newcomer: &mut Newcomer) {
        let now = newcomer.host.true_time();
        newcomer.attempt = match self.manager.connect() {
            Some(socket) => {
                socket.send(&proto::encode(&Hello::Node(newcomer.join.clone())));
                Attempt::Asking(socket, newcomer.host.now())
            }
            None => Attempt::Waiting(now + AGAIN),
        };
    }

    /// Goes on with all machines that join; gives the positions of those that have.
    pub fn poll_joins(&mut self) -> Vec<usize> {
        let mut joined = Vec::new();
        for mut newcomer in std::mem::take(&mut self.newcomers) {
            match &newcomer.attempt {
                Attempt::Waiting(at) if *at <= newcomer.host.true_time() => self.ask(&mut newcomer),
                Attempt::Asking(socket, _) if socket.has_news() => {
                    match self.welcome(newcomer) {
                        Ok(node) => joined.push(node),
                        Err(refused) => self.newcomers.push(*refused),
                    }
                    continue;
                }
                Attempt::Asking(socket, said) if *said + JOIN_LIMIT <= newcomer.host.now() => {
                    socket.close();
                    newcomer.attempt = Attempt::Waiting(newcomer.host.true_time() + AGAIN);
                }
                _ => {}
            }
            self.newcomers.push(newcomer);
        }
        joined
    }

    /// How many machines have begun to join and have not joined.
    #[must_use]
    pub fn joining(&self) -> usize {
        self.newcomers.len()
    }

    /// A machine has an answer, or lost its connection: it is a node, or tries again later.
    fn welcome(&mut self, mut newcomer: Newcomer) -> Result<usize, Box<Newcomer>> {
        let Attempt::Asking(socket, said) = &newcomer.attempt else { return Err(Box::new(newcomer)) };
        let answer = match socket.try_recv() {
            Poll::Ready(Ok(message)) => proto::decode(&message).ok(),
            Poll::Ready(Err(_)) | Poll::Pending => None,
        };
        let Some(ToNode::Welcome(welcome)) = answer else {
            newcomer.attempt = Attempt::Waiting(newcomer.host.true_time() + AGAIN);
            return Err(Box::new(newcomer));
        };
        let lease = Duration::from_millis(u64::from(welcome.lease_ms));
        let link = Link::new(socket.clone(), lease, *said);
        self.manager.joined(socket, welcome.node);
        let Newcomer { host, plugged, join, .. } = newcomer;
        Ok(self.start(host, plugged, join, link, welcome))
    }

    fn start(
        &mut self,
        host: Arc<Host>,
        plugged: Plugged,
        join: Join,
        link: Arc<Link>,
        welcome: Welcome,
    ) -> usize {
        let rnic = plugged.rnic();
        plugged.set_gid(welcome.gid);
        let config = self.options.config.clone();
        let lite =
            Lite::start(host.clone(), rnic.clone(), link.clone(), welcome, config).expect("node starts");
        if let Some(device) = plugged.device() {
            self.world.attach(&host, device);
        }
        self.world.attach(&host, Arc::new(Poller { rnic, lite: lite.clone() }));
        self.world.attach(&host, Arc::new(Heart(link.clone())));
        self.nodes.push(Machine { host, lite, plugged, mac: join.rnic.mac, name: join.name, link });
        self.nodes.len()
    }

    /// How many nodes have joined so far, the dead among them.
    #[must_use]
    pub fn joined(&self) -> usize {
        self.nodes.len()
    }

    /// Parts the nodes `i` and `j`, or joins them again: what one RNIC sends does not reach the other.
    pub fn part(&self, i: usize, j: usize, apart: bool) {
        self.wire.part(self.nodes[i - 1].mac, self.nodes[j - 1].mac, apart);
    }

    /// What the RNIC of node `from` sends does not reach node `to`, or does again.
    pub fn deafen(&self, from: usize, to: usize, deaf: bool) {
        self.wire.deafen(self.nodes[from - 1].mac, self.nodes[to - 1].mac, deaf);
    }

    /// No machine joins any more that has not joined.
    pub fn end_joins(&mut self) {
        for newcomer in self.newcomers.drain(..) {
            newcomer.host.kill();
            if let Attempt::Asking(socket, _) = newcomer.attempt {
                socket.close();
            }
        }
    }

    /// The LITE of node `i`, counted from 1.
    #[must_use]
    pub fn lite(&self, i: usize) -> Lite {
        self.nodes[i - 1].lite.clone()
    }

    /// The control connection of node `i`, counted from 1.
    #[must_use]
    pub fn control(&self, i: usize) -> Arc<dyn ControlLink> {
        self.nodes[i - 1].link.clone()
    }

    /// The RNIC of node `i`, counted from 1.
    #[must_use]
    pub fn rnic(&self, i: usize) -> Arc<dyn Rnic> {
        self.nodes[i - 1].plugged.rnic()
    }

    /// Lets the RNIC of node `i` work, also if the node is paused: hardware does.
    pub fn progress_rnic(&self, i: usize) {
        let Machine { host, plugged, .. } = &self.nodes[i - 1];
        plugged.rnic().progress(host.now(), 64);
        if let Some(device) = plugged.device() {
            device.poll(host.now());
        }
    }

    /// Has the card of node `i` fail, until its driver mends it; `false` if it has none that can.
    pub fn fail_card(&self, i: usize) -> bool {
        self.nodes[i - 1].plugged.fail()
    }

    /// The machine of node `i`, counted from 1.
    #[must_use]
    pub fn host(&self, i: usize) -> Arc<Host> {
        self.nodes[i - 1].host.clone()
    }
}
