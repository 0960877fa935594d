//! The means for tests and benchmarks of LITE, all in one process and decided by one seed: an executor
//! under virtual time, an RNIC that does its work at once, and a manager that only forwards messages.

pub(crate) mod audit;
mod direct;
mod executor;
mod hostile;
mod hub;
mod native;
mod paced;
mod rnic;
mod shadow;
#[cfg(debug_assertions)]
mod sometimes;
mod sparse;
mod words;

pub use direct::{DirectFabric, DirectRnic};
pub use executor::{Device, Host, World};
pub use hostile::Hostile;
pub use hub::Hub;
pub use native::{Clock, Cores, Native, NativeHost, NativeNode};
pub use paced::PacedRnic;
pub use rnic::{Fabric, InstantRnic};
pub use shadow::{Bytes, errands, has_cut_off, may_change, region_owner, take_accepted};
#[cfg(debug_assertions)]
pub use sometimes::{count_state, take_states};
pub use sparse::{Sparse, SparseHost};
pub use words::Words;

#[cfg(debug_assertions)]
pub use crate::base::lock::on_lock;
#[cfg(debug_assertions)]
pub use crate::base::writers::{record_writers, take_changes_of_writers};
#[cfg(debug_assertions)]
pub use crate::planted::{Bug, plant};
use crate::{Config, Lite};
use alloc::sync::Arc;
use alloc::vec::Vec;
use platform::{Instant, IoAddr, Platform};
use verbs::{Gid, MacAddr, PortAddress, Rnic};

/// An RNIC and the LITE above it, polled as by the core that owns them.
pub struct Poller {
    /// The RNIC of the node.
    pub rnic: Arc<dyn Rnic>,
    /// The LITE of the node.
    pub lite: Lite,
}

impl Device for Poller {
    fn poll(&self, now: Instant) -> bool {
        let progress = self.rnic.progress(now, 64);
        self.lite.poll(now) | progress
    }

    fn next_deadline(&self) -> Option<Instant> {
        [self.rnic.next_deadline(), self.lite.next_deadline()].into_iter().flatten().min()
    }
}

/// A cluster over [`InstantRnic`]s.
pub struct Cluster {
    /// The executor.
    pub world: World,
    /// The network.
    pub fabric: Arc<Fabric>,
    /// The manager.
    pub hub: Arc<Hub>,
    /// The host and the LITE of each node; the first has node number 1.
    pub nodes: Vec<(Arc<Host>, Lite)>,
    rate: Option<u64>,
}

impl Drop for Cluster {
    /// Ends the functions of all nodes: a call that waits in the queue of a function holds its node, and the
    /// node holds the queue.
    fn drop(&mut self) {
        for (_, lite) in &self.nodes {
            lite.by.node.services.close_all();
        }
    }
}

impl Cluster {
    /// Returns `count` joined nodes of `memory` bytes each.
    ///
    /// # Panics
    /// If a node cannot start.
    #[must_use]
    pub fn new(seed: u64, count: u8, memory: u64, config: &Config) -> Self {
        Self::paced(seed, count, memory, config, None)
    }

    /// Does the same as [`new`](Self::new); with `rate`, each node's link carries that many bytes per
    /// second.
    ///
    /// # Panics
    /// If a node cannot start.
    #[must_use]
    pub fn paced(seed: u64, count: u8, memory: u64, config: &Config, rate: Option<u64>) -> Self {
        let world = World::new(seed);
        let (fabric, hub) = (Fabric::new(), Hub::new());
        let mut cluster = Self { world, fabric, hub, nodes: Vec::new(), rate };
        for i in 1..=count {
            cluster.join(i, memory, config);
        }
        // All nodes learn of each other.
        cluster.world.run_for(core::time::Duration::from_millis(1));
        cluster
    }

    /// Adds a node, whose address ends in `i`.
    ///
    /// # Panics
    /// If the node cannot start.
    pub fn join(&mut self, i: u8, memory: u64, config: &Config) -> &Lite {
        let host = self.world.host(IoAddr(u64::from(i) << 32), memory);
        self.join_as(i, &host.clone(), host, config)
    }

    /// Adds a node that runs on `host`, with `platform` as its machine.
    ///
    /// # Panics
    /// If the node cannot start.
    pub fn join_as(
        &mut self,
        i: u8,
        host: &Arc<Host>,
        platform: Arc<dyn Platform>,
        config: &Config,
    ) -> &Lite {
        let gid = Gid::from_ipv4([10, 0, 0, i]);
        let port = PortAddress { mac: MacAddr([2, 0, 0, 0, 0, i]), gid, lid: 0 };
        let mut rnic: Arc<dyn Rnic> = self.fabric.rnic(port, platform.clone());
        if let Some(rate) = self.rate {
            rnic = PacedRnic::new(rnic, rate);
        }
        let (link, welcome) = self.hub.join(&*rnic);
        let lite = Lite::start(platform, rnic.clone(), link, welcome, config.clone()).expect("node starts");
        self.world.attach(host, Arc::new(Poller { rnic, lite: lite.clone() }));
        self.nodes.push((host.clone(), lite));
        &self.nodes[self.nodes.len() - 1].1
    }

    /// Returns the LITE of node `i`, counted from 1.
    #[must_use]
    pub fn lite(&self, i: usize) -> Lite {
        self.nodes[i - 1].1.clone()
    }
}
