//! A simulated cluster: nodes, wire and manager together.

use crate::manager::{ControlLinks, Heart, Link, Socket};
use crate::nic::Plugged;
use crate::shadow::Shadows;
use crate::{Nics, SimManager, Trace, Wire};
use lite::testing::{Host, Poller, World};
use lite::{Config, Lite, Retransmission};
use netfault::Faults;
use platform::{ControlLink, Instant, IoAddr, Platform};
use proto::{AppManifest, BootReport, Hello, Join, PROTOCOL_VERSION, RnicOffer, ToNode, Welcome};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use verbs::{MacAddr, PathMtu, Rnic};

/// The parameters of a cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// The seed of all random decisions.
    pub seed: u64,
    /// The number of nodes.
    pub nodes: u16,
    /// The RNICs of the nodes.
    pub nics: Nics,
    /// The memory of each node, in bytes.
    pub memory: u64,
    /// The most cores of a node. The machines have 1 to that many cores in turn.
    pub cores: usize,
    /// The time after which a member without a heartbeat loses its membership.
    pub lease: Duration,
    /// The faults of the wire.
    pub faults: Faults,
    /// The properties of the control connections.
    pub control: ControlLinks,
    /// True if nodes ask for the id that their name had before.
    pub keep_ids: bool,
    /// The versions of the protocol that the machines speak, in turn.
    pub versions: Vec<u16>,
    /// The applications that nodes offer.
    pub apps: Vec<AppManifest>,
    /// The largest deviation of a node's clock, in millionths.
    pub drift: i32,
    /// The configuration of LITE.
    pub config: Config,
}

impl Default for Options {
    fn default() -> Self {
        let ack_timeout = Duration::from_millis(2);
        let retransmission = Retransmission { ack_timeout, ..Retransmission::default() };
        let config = Config { retransmission, ..Config::default() };
        let faults = Faults { delay_ns: 5_000, ..Faults::NONE };
        let lease = Duration::from_secs(1);
        Self {
            seed: 1,
            nodes: 4,
            nics: Nics::default(),
            memory: 8 << 20,
            cores: 1,
            lease,
            faults,
            control: ControlLinks::INSTANT,
            keep_ids: false,
            versions: vec![PROTOCOL_VERSION],
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
    /// The trace of all events.
    pub trace: Arc<Trace>,
    /// The shadows of the nodes' memory.
    pub(crate) shadows: Arc<Shadows>,
    options: Options,
    nodes: Vec<Machine>,
    /// The machines that have begun to join, and the number of machines so far.
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

/// A machine that is up but is not a member.
struct Newcomer {
    serial: u16,
    host: Arc<Host>,
    plugged: Plugged,
    join: Join,
    attempt: Attempt,
}

enum Attempt {
    /// The machine has sent its hello, at the given time of the machine's own clock.
    Asking(Socket, Instant),
    /// The machine tries to connect again at the given true time.
    Waiting(Instant),
}

/// The pause of a machine that was refused, or found no manager.
const AGAIN: Duration = Duration::from_millis(200);
/// The time for which a machine waits for an answer.
const JOIN_LIMIT: Duration = Duration::from_secs(5);

impl Cluster {
    /// Joins all nodes, and waits until they know each other.
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
        let shadows = Arc::default();
        let mut cluster =
            Self { world, wire, manager, trace, shadows, options, nodes, newcomers, machines: 0 };
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

    /// Joins one more node, and returns its position, counted from 1.
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

    /// Lets a machine begin to join: a new one, or that of the dead node at the given position. It tries
    /// until it is a member; [`poll_joins`](Self::poll_joins) continues that.
    pub fn begin_join(&mut self, former: Option<usize>) {
        self.machines += 1;
        let serial = self.machines;
        let [high, low] = serial.to_be_bytes();
        let (mac, name) = match former {
            Some(node) => (self.nodes[node - 1].mac, self.nodes[node - 1].name.clone()),
            None => (MacAddr([2, 0xfe, 0, 0, high, low]), format!("sim-{serial}")),
        };
        // Each node's memory has different addresses, so that no test confuses two nodes' memory. An emulated
        // card addresses 1 TiB of a region, which is enough for 255 machines.
        let apart = self.options.memory.next_power_of_two().max(4 << 30);
        let host = self.world.host(IoAddr(u64::from(serial) * apart), self.options.memory);
        host.set_cores(1 + usize::from(serial) % self.options.cores.max(1));
        if self.options.drift > 0 {
            let spread = 2 * self.options.drift as u64 + 1;
            host.drift((self.world.random() % spread) as i32 - self.options.drift);
        }
        let port = self.wire.port(mac, host.clone(), serial.into());
        let nic = self.options.nics.of(serial.into());
        let plugged = Plugged::new(nic, mac, port, &host, serial.into(), &self.shadows);
        let versions = &self.options.versions;
        let version = versions[usize::from(serial - 1) % versions.len()];
        let join = Join { version, ..self.wish(&plugged, mac, name, host.memory().range().1) };
        let mut newcomer = Newcomer { serial, host, plugged, join, attempt: Attempt::Waiting(Instant::ZERO) };
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
            boot_id: 0,
        }
    }

    /// Connects a machine and sends its hello, if the manager runs.
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

    /// Continues with all machines that join, and returns the positions of those that have joined.
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

    /// Returns the number of machines that have begun to join and have not joined.
    #[must_use]
    pub fn joining(&self) -> usize {
        self.newcomers.len()
    }

    /// Handles a machine's answer or the loss of its connection. It becomes a node, or tries again later.
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
        let link = Link::new(socket.clone(), newcomer.join.version, &welcome, *said);
        self.manager.joined(socket, welcome.node);
        Ok(self.start(newcomer, link, welcome))
    }

    fn start(&mut self, newcomer: Newcomer, link: Arc<Link>, welcome: Welcome) -> usize {
        let Newcomer { serial, host, plugged, join, .. } = newcomer;
        let rnic = plugged.rnic();
        plugged.set_gid(welcome.gid);
        let config = self.options.config.clone();
        let lite =
            Lite::start(host.clone(), rnic.clone(), link.clone(), welcome, config).expect("node starts");
        self.shadows.started(serial.into(), &lite, &host);
        if let Some(device) = plugged.device() {
            self.world.attach(&host, device);
        }
        self.world.attach(&host, Arc::new(Poller { rnic, lite: lite.clone() }));
        self.world.attach(&host, Arc::new(Heart(link.clone())));
        self.nodes.push(Machine { host, lite, plugged, mac: join.rnic.mac, name: join.name, link });
        self.nodes.len()
    }

    /// Returns whether a node leaves when the manager is silent for a few seconds.
    #[must_use]
    pub fn leaves_in_silence(&self) -> bool {
        self.options.config.silence.is_some_and(|silence| silence < Duration::from_secs(60))
    }

    /// Returns the number of nodes that have joined so far, including the dead.
    #[must_use]
    pub fn joined(&self) -> usize {
        self.nodes.len()
    }

    /// Separates the nodes `i` and `j`, or connects them again. Frames between separated nodes are lost.
    pub fn part(&self, i: usize, j: usize, apart: bool) {
        self.wire.part(self.nodes[i - 1].mac, self.nodes[j - 1].mac, apart);
    }

    /// Delays all frames from node `from` to node `to` by a time; `None` ends the delay.
    pub fn slow(&self, from: usize, to: usize, by: Option<Duration>) {
        self.wire.slow(self.nodes[from - 1].mac, self.nodes[to - 1].mac, by);
    }

    /// Drops all frames from node `from` to node `to` if `deaf` is true; stops that otherwise.
    pub fn deafen(&self, from: usize, to: usize, deaf: bool) {
        self.wire.deafen(self.nodes[from - 1].mac, self.nodes[to - 1].mac, deaf);
    }

    /// Stops all machines that have not joined.
    pub fn end_joins(&mut self) {
        for newcomer in self.newcomers.drain(..) {
            newcomer.host.kill();
            if let Attempt::Asking(socket, _) = newcomer.attempt {
                socket.close();
            }
        }
    }

    /// Returns the LITE of node `i`, counted from 1.
    #[must_use]
    pub fn lite(&self, i: usize) -> Lite {
        self.nodes[i - 1].lite.clone()
    }

    /// Returns the control connection of node `i`, counted from 1.
    #[must_use]
    pub fn control(&self, i: usize) -> Arc<dyn ControlLink> {
        self.nodes[i - 1].link.clone()
    }

    /// Returns the RNIC of node `i`, counted from 1.
    #[must_use]
    pub fn rnic(&self, i: usize) -> Arc<dyn Rnic> {
        self.nodes[i - 1].plugged.rnic()
    }

    /// Lets the RNIC of node `i` work, even if the node is paused, as hardware does.
    pub fn progress_rnic(&self, i: usize) {
        let Machine { host, plugged, .. } = &self.nodes[i - 1];
        plugged.rnic().progress(host.now(), 64);
        if let Some(device) = plugged.device() {
            device.poll(host.now());
        }
    }

    /// Makes the card of node `i` fail until its driver recovers it. Returns false if the node has no card
    /// that can fail.
    pub fn fail_card(&self, i: usize) -> bool {
        self.nodes[i - 1].plugged.fail()
    }

    /// Returns the machine of node `i`, counted from 1.
    #[must_use]
    pub fn host(&self, i: usize) -> Arc<Host> {
        self.nodes[i - 1].host.clone()
    }
}
