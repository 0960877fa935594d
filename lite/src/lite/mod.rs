//! The public face of a node: [`Lite`].

mod members;
mod memory;
mod messages;
mod objects;

use crate::base::lock::Mutex;
use crate::base::qos::Class;
use crate::node::{BATCHES, Node, Poller};
use crate::region::Issuer;
use crate::transport::conn::peers::PeerLink;
use crate::{App, Config, Error, Priority, Scheme, Scope, Stamped};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use platform::{ControlLink, Instant, Platform};
use proto::{Incarnation, NodeId, Welcome};
use verbs::Rnic;

/// A node's LITE, and the deadline, priority and application of the operations that are issued through this
/// handle. Cheap to clone.
#[derive(Clone)]
pub struct Lite {
    pub(crate) node: Arc<Node>,
    pub(crate) by: Arc<Issuer>,
}

impl Lite {
    /// Starts LITE on a node whose join was answered with `welcome`. The RNIC must be up with the GID of
    /// `welcome`. LITE receives everything that arrives on `link` from now on, including acknowledgements
    /// of heartbeats; the platform sends the heartbeats.
    ///
    /// # Errors
    /// `NoMemory` or `Refused` if the node's memory or the RNIC's resources do not suffice.
    pub fn start(
        platform: Arc<dyn Platform>,
        rnic: Arc<dyn Rnic>,
        link: Arc<dyn ControlLink>,
        welcome: Welcome,
        config: Config,
    ) -> Result<Self, Error> {
        let timeout = config.deadline;
        let node = Arc::new(Node::new(platform, rnic, (&welcome, &*link), config)?);
        for member in welcome.members {
            node.on_joined(member);
        }
        node.start_services();
        node.start_control(link);
        node.report_memory();
        let by = Issuer::new(node.regions().clone(), timeout, Class::default());
        Ok(Self { node, by })
    }

    /// Runs the pollers of all cores once and returns true if there was something to do. Call it in task
    /// context after the RNIC's `progress`, and again before the calling core halts, if no core but that one
    /// polls.
    pub fn poll(&self, now: Instant) -> bool {
        if self.pollers() == 1 { self.poll_shard(0, now) } else { self.poll_all(now) }
    }

    #[cold]
    fn poll_all(&self, now: Instant) -> bool {
        (0..self.pollers()).fold(false, |any, core| self.poll_core(core, now) | any)
    }

    /// Runs the poller of `core` once and returns true if there was something to do. Call it in task context
    /// on that core, or on another one while that core sleeps, after the RNIC's `progress`, and again before
    /// the core halts. Cores beyond [`pollers`](Self::pollers) have none.
    pub fn poll_core(&self, core: usize, now: Instant) -> bool {
        self.poll_shard(core, now)
    }

    /// Runs the poller of a shard once.
    #[inline(always)]
    fn poll_shard(&self, index: usize, now: Instant) -> bool {
        let (node, transport) = (&*self.node, &*self.node.transport);
        let Some(shard) = transport.shards.get(index) else { return false };
        // Most turns only compare one time, and take completions.
        if transport.standing.is_due(now) {
            return self.node.full_turn(shard, now);
        }
        let poller = node.pollers.get(index).and_then(Mutex::try_lock);
        let Some(mut poller) = poller else { return false };
        let Poller { batch, inbox } = &mut *poller;
        transport.take_completions(shard, batch, BATCHES, |other| node.other_completion(inbox, other))
    }

    /// Returns the number of pollers: one for each core that has queue pairs of its own.
    #[must_use]
    pub fn pollers(&self) -> usize {
        self.node.transport.shards.count()
    }

    /// Returns the time by which [`poll`](Self::poll) must be called even if nothing arrives.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.node.next_deadline()
    }

    /// Returns the time by which [`poll_core`](Self::poll_core) must be called for `core` even if nothing
    /// arrives. That of core 0 includes everything that is not a core's own.
    #[must_use]
    pub fn next_deadline_of(&self, core: usize) -> Option<Instant> {
        if core == 0 { self.node.next_deadline() } else { self.node.next_deadline_of(core) }
    }

    /// Returns the platform: the node's, or the one that was given to [`scoped`](Self::scoped).
    #[must_use]
    pub fn platform(&self) -> &Arc<dyn Platform> {
        &self.by.platform
    }

    /// Waits for the time `d`.
    pub async fn sleep(&self, d: Duration) {
        self.node.timers.until(self.node.platform.now() + d).await;
    }

    /// Returns the number of this node.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.node.me
    }

    /// Returns the incarnation of this node.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.node.incarnation
    }

    /// Returns a handle whose operations, and those of regions that it makes, end within `d` of their call.
    #[must_use]
    pub fn with_deadline(&self, d: Duration) -> Self {
        Self { node: self.node.clone(), by: self.by.with_timeout(d) }
    }

    /// Returns the deadline of an operation that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        self.by.deadline()
    }

    /// Calls `each` for every count of this node's LITE: `lite_reads`, `lite_retries`, and so on.
    pub fn counters(&self, each: &mut dyn FnMut(verbs::Counter)) {
        let fast_path: Vec<_> = self.node.shards.iter().map(|shard| shard.ops.lock().fast_path).collect();
        let served = self.node.rpc.services.served();
        let elsewhere = |name: &str| match name {
            "served" => served,
            name => fast_path.iter().map(|counts| counts.of(name)).sum(),
        };
        self.node.counters.each(elsewhere, each);
    }

    /// Calls `each` for every count of this node's RNIC.
    pub fn rnic_counters(&self, each: &mut dyn FnMut(verbs::Counter)) {
        self.node.rnic.counters(each);
    }

    /// Returns the peers to which this node has a connection, by number, each with the number of the attempt
    /// that has made the connection, and the number of work requests posted on it so far, modulo 2^32.
    #[must_use]
    pub fn traffic(&self) -> Vec<(NodeId, u64, u32)> {
        let peers = self.node.peers.lock();
        let ready = peers.iter().filter_map(|(&peer, state)| match &state.link {
            PeerLink::Ready(conn) => Some((peer, conn.id, conn.group.lanes.begun())),
            _ => None,
        });
        ready.collect()
    }

    /// Selects the scheme for what this node sends from now on. The service level of a connection's queue
    /// pairs is that of the scheme under which it was opened.
    pub fn configure_qos(&self, scheme: Scheme) {
        self.node.qos.configure(scheme);
    }

    /// Returns a handle whose operations, and those of regions that it makes, have that priority.
    #[must_use]
    pub fn with_priority(&self, priority: Priority) -> Self {
        Self { node: self.node.clone(), by: self.by.classed(self.by.class.with_priority(priority)) }
    }

    /// Returns a handle whose operations and regions count as `app`'s.
    #[must_use]
    pub fn for_app(&self, app: &App) -> Self {
        Self { node: self.node.clone(), by: self.by.classed(self.by.class.for_app(app)) }
    }

    /// Returns a handle and its scope. Everything that is made through this handle, through handles derived
    /// from it, and through regions made by them ends with the [`Scope`]: published regions and counters,
    /// on any node; locks; events; functions and mailboxes. (A region that is not published ends with its
    /// last handle anyway.)
    ///
    /// The handle's [`platform`](Self::platform) is `platform`, so that the caller can end the tasks of the
    /// scope.
    #[must_use]
    pub fn scoped(&self, platform: Arc<dyn Platform>) -> (Self, Scope) {
        let scope = Scope::new();
        let by = self.by.scoped(scope.handle(), platform);
        (Self { node: self.node.clone(), by }, scope)
    }

    /// Turns tracing on or off. The first time uses 128 KiB for each processor.
    pub fn set_tracing(&self, on: bool) {
        self.node.trace.set(on, self.node.platform.cpus());
    }

    /// Returns the last events, by time: at most 4,096 of each processor. Events that are overwritten
    /// meanwhile are left out.
    #[must_use]
    pub fn traced(&self) -> Vec<Stamped> {
        self.node.trace.events()
    }
}
