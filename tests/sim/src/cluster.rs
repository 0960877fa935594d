//! Nodes, wire and manager together.

use crate::nic::Plugged;
use crate::{Nics, SimManager, Trace, Wire};
use lite::testing::{Host, Poller, World};
use lite::{Config, Lite};
use netfault::Faults;
use platform::{IoAddr, Platform};
use proto::{BootReport, Join, PROTOCOL_VERSION, RnicOffer};
use std::sync::Arc;
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
        Self { seed: 1, nodes: 4, nics: Nics::default(), memory: 8 << 20, lease, faults, drift: 0, config }
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
}

struct Machine {
    host: Arc<Host>,
    lite: Lite,
    plugged: Plugged,
    mac: MacAddr,
}

impl Cluster {
    /// All nodes join, and know each other.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let mut world = World::new(options.seed);
        let trace = Arc::new(Trace::default());
        let wire = Wire::new(options.faults, options.seed, trace.clone());
        let manager = SimManager::new(options.lease, trace.clone());
        world.attach_free(wire.clone());
        world.attach_free(manager.clone());
        let count = options.nodes;
        let mut cluster = Self { world, wire, manager, trace, options, nodes: Vec::new() };
        for _ in 0..count {
            cluster.join();
        }
        cluster.world.run_for(Duration::from_millis(1));
        cluster
    }

    /// One more node joins; gives its position, counted from 1.
    ///
    /// # Panics
    /// If it is refused or cannot start.
    pub fn join(&mut self) -> usize {
        let i = self.nodes.len() as u16 + 1;
        // Each node's memory at another address, so that none is taken for another's.
        let host = self.world.host(IoAddr(u64::from(i) << 36), self.options.memory);
        if self.options.drift > 0 {
            let spread = 2 * self.options.drift as u64 + 1;
            host.drift((self.world.random() % spread) as i32 - self.options.drift);
        }
        let [high, low] = i.to_be_bytes();
        let mac = MacAddr([2, 0xfe, 0, 0, high, low]);
        let port = self.wire.port(mac, host.clone());
        let plugged = Plugged::new(self.options.nics.of(i.into()), mac, port, &host);
        let rnic = plugged.rnic();
        let (len, attributes) = (host.memory().range().1, rnic.attributes());
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
        let join = Join {
            version: PROTOCOL_VERSION,
            name: format!("sim-{i}"),
            keep_id: false,
            rnic: offer,
            memory: len,
            memory_free: len,
            cpus: 1,
            apps: Vec::new(),
            boot: BootReport::default(),
        };
        let (link, welcome, heart) = self.manager.join(&host, join);
        plugged.set_gid(welcome.gid);
        let config = self.options.config.clone();
        let lite = Lite::start(host.clone(), rnic.clone(), link, welcome, config).expect("node starts");
        if let Some(device) = plugged.device() {
            self.world.attach(&host, device);
        }
        self.world.attach(&host, Arc::new(Poller { rnic: rnic.clone(), lite: lite.clone() }));
        self.world.attach(&host, heart);
        self.nodes.push(Machine { host, lite, plugged, mac });
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

    /// The LITE of node `i`, counted from 1.
    #[must_use]
    pub fn lite(&self, i: usize) -> Lite {
        self.nodes[i - 1].lite.clone()
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
