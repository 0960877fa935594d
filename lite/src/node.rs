//! The state of one node's LITE, and its poller.

use crate::bounce::{BouncePool, Buffers};
use crate::conn::{Conn, Gone, Peer, PeerPermits};
use crate::control::Control;
use crate::counters::Counters;
use crate::errands::Errands;
use crate::lease::{Ended, Lease, Resumed, Step};
use crate::lock::Mutex;
use crate::membership::Watchers;
use crate::op::{Ends, OpId, OpTable};
use crate::qos::Qos;
use crate::region::{Holdings, Holds, MappingTable, RegionTable, Stamps};
use crate::rpc::{LocalReplies, ServiceTable};
use crate::sometimes::sometimes;
use crate::sync::{Objects, Waits};
use crate::timer::Timers;
use crate::trace::{Event, Trace};
use crate::wait::{DeferredList, Waiters};
use crate::{Config, Error};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::Waker;
use core::time::Duration;
use platform::{Instant, Platform};
use proto::{Incarnation, NodeId, ToManager, Welcome};
use verbs::{Attributes, Completion, CqId, CqOptions, Gid, MemoryKey, QpNum, Rnic, Status, WorkKind};

/// The number of completions taken at once.
const BATCH: usize = 64;
/// The most batches taken in one call of the poller, unless a connection is being closed.
const BATCHES: usize = 16;
/// The number of connections that the poller caches.
const KNOWN: usize = 32;
/// The number of receives of a connection that are posted at once.
const REPOSTED: u32 = 8;
/// The pause before messages that found no room, and queue pairs that the RNIC could not destroy, are tried
/// again.
const STALLED_PAUSE: Duration = Duration::from_millis(1);

/// The state of one node's LITE.
pub(crate) struct Node {
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) rnic: Arc<dyn Rnic>,
    pub(crate) attributes: Attributes,
    pub(crate) max_inline: usize,
    pub(crate) config: Config,
    pub(crate) me: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) gid: Gid,
    pub(crate) key: MemoryKey,
    pub(crate) cq: CqId,
    /// The most bytes that one work request moves.
    pub(crate) chunk: usize,
    pub(crate) lease: Lease,
    /// Tasks that wait for the end of a suspension.
    pub(crate) resumption: Waiters,

    /// The memory of the operations' bounce buffers.
    pub(crate) buffers: Buffers,
    pub(crate) ops: Mutex<OpTable>,
    /// The published state of the operations.
    pub(crate) ends: Ends,
    /// A time in nanoseconds that is not later than the earliest deadline of a waiting operation.
    pub(crate) earliest_op: AtomicU64,
    /// A time in nanoseconds that is not later than the earliest deadline of a waiting call.
    pub(crate) earliest_call: AtomicU64,
    /// Tasks that wait for a slot, a bounce buffer or room in a queue pair.
    pub(crate) resources: Waiters,
    /// Tasks that wait until nothing of a mapping is on the wire.
    pub(crate) drains: Waiters,
    pub(crate) timers: Timers,
    pub(crate) counters: Counters,
    pub(crate) qos: Qos,
    pub(crate) trace: Trace,

    pub(crate) peers: Mutex<BTreeMap<NodeId, Peer>>,
    pub(crate) peer_change: Waiters,
    /// The incarnations whose end all members have seen.
    #[cfg(feature = "testing")]
    pub(crate) settled: Mutex<Vec<(NodeId, Incarnation)>>,
    pub(crate) by_qp: Mutex<BTreeMap<QpNum, Arc<Conn>>>,
    pub(crate) loopback: Mutex<Option<Arc<Conn>>>,
    /// The permits in use, of [`Config::peers`].
    pub(crate) permits: PeerPermits,
    /// True while a task finds permits for waiting peers.
    pub(crate) finding_room: AtomicBool,
    /// The time in nanoseconds at which the poller must check for unused connections.
    pub(crate) next_sweep: AtomicU64,
    /// Connections whose queue pairs are destroyed, and whose completions may not all be taken.
    pub(crate) closing: DeferredList<Arc<Conn>>,
    /// Connections that have ended, and whose queue pairs the RNIC could not destroy yet.
    pub(crate) served: DeferredList<Arc<Conn>>,
    /// Connections with messages that found no room.
    pub(crate) stalled: DeferredList<Arc<Conn>>,

    pub(crate) services: ServiceTable,
    pub(crate) local_replies: LocalReplies,
    pub(crate) regions: RegionTable,
    /// The memory of this node in regions of other owners.
    pub(crate) holdings: Holdings,
    pub(crate) mappings: MappingTable,
    pub(crate) stamps: Arc<Stamps>,
    /// The mappings of the applications' handles.
    pub(crate) holds: Holds,
    /// The locks, events and barriers whose home this node is.
    pub(crate) objects: Mutex<Objects>,
    /// The waits of this node's tasks for locks, events and barriers, here and elsewhere.
    pub(crate) waits: Waits,
    pub(crate) control: Control,
    pub(crate) watchers: Watchers,
    /// Memory operations on behalf of other nodes.
    pub(crate) errands: Errands,
    poller: Mutex<Poller>,
}

struct Poller {
    batch: [Completion; BATCH],
    known: Known,
}

/// The connections that messages have come from recently, by number of the queue pair; others are looked up
/// in [`Node::by_qp`].
type Known = [Option<(QpNum, Arc<Conn>)>; KNOWN];

impl Node {
    pub(crate) fn new(
        platform: Arc<dyn Platform>,
        rnic: Arc<dyn Rnic>,
        (welcome, lease_until): (&Welcome, Instant),
        config: Config,
    ) -> Result<Self, Error> {
        let config = config.checked();
        let attributes = rnic.attributes();
        let no_memory = |asked| Error::NoMemory { asked, free: platform.memory().largest_free() };
        let bounce = BouncePool::new(&platform, &config.bounce).map_err(no_memory)?;
        let depth = config.operations + config.peers * config.recv_depth();
        let cq = rnic
            .create_cq(CqOptions { depth })
            .map_err(|e| Error::Refused(alloc::format!("no completion queue: {e}")))?;
        let lease = Duration::from_millis(u64::from(welcome.lease_ms));
        let buffers = bounce.buffers();
        let ops = OpTable::new(config.operations, bounce);
        Ok(Self {
            max_inline: attributes.max_inline as usize,
            me: welcome.node,
            incarnation: welcome.incarnation,
            gid: welcome.gid,
            key: rnic.memory_key(),
            cq,
            chunk: config.bounce[2].0 as usize,
            lease: Lease::new(lease_until.min(platform.now() + lease), config.silence),
            resumption: Waiters::default(),
            buffers,
            ends: ops.ends(),
            ops: Mutex::new(ops),
            earliest_op: AtomicU64::new(u64::MAX),
            earliest_call: AtomicU64::new(u64::MAX),
            resources: Waiters::default(),
            drains: Waiters::default(),
            timers: Timers::new(platform.clone()),
            counters: Counters::default(),
            qos: Qos::default(),
            trace: Trace::default(),
            peers: Mutex::default(),
            peer_change: Waiters::default(),
            #[cfg(feature = "testing")]
            settled: Mutex::default(),
            by_qp: Mutex::default(),
            loopback: Mutex::default(),
            permits: PeerPermits::default(),
            finding_room: AtomicBool::new(false),
            next_sweep: AtomicU64::new(u64::MAX),
            closing: DeferredList::default(),
            served: DeferredList::default(),
            stalled: DeferredList::default(),
            services: ServiceTable::default(),
            local_replies: LocalReplies::default(),
            regions: RegionTable::default(),
            holdings: Holdings::default(),
            mappings: MappingTable::default(),
            stamps: Arc::default(),
            holds: Holds::default(),
            objects: Mutex::default(),
            waits: Waits::default(),
            control: Control::new(),
            watchers: Watchers::default(),
            errands: Errands::default(),
            poller: Mutex::new(Poller { batch: [Completion::BLANK; BATCH], known: [const { None }; KNOWN] }),
            attributes,
            config,
            platform,
            rnic,
        })
    }

    pub(crate) fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        self.platform.fill_random(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    // ---- The lease ----

    /// Returns true if this node begins nothing as a member any more.
    pub(crate) fn is_fenced(&self) -> bool {
        self.lease.is_fenced()
    }

    /// Suspends this node if its lease has passed at `now`. Must be called before an operation begins.
    #[inline(always)]
    pub(crate) fn look_at_lease(&self, now: Instant) {
        if self.lease.has_passed(now) {
            self.lapsed(now);
        }
    }

    #[cold]
    fn lapsed(&self, now: Instant) {
        if self.lease.suspend(now) {
            sometimes!("a node suspended itself");
            // The poller's deadlines have changed.
            self.platform.wake_poller();
        }
    }

    /// Extends the lease to `until`, because the manager has acknowledged a heartbeat.
    pub(crate) fn extend_lease(&self, until: Instant) {
        if let Some(Resumed { told }) = self.lease.extend(until, self.platform.now()) {
            if let Some(lasted) = told {
                log::info!("lite: the manager answers again: {} goes on after {lasted:.1?}", self.me);
            }
            self.end_suspension();
        }
    }

    /// Wakes all tasks that wait for the end of a suspension, and the poller for deferred work.
    fn end_suspension(&self) {
        self.resumption.wake_all();
        self.peer_change.wake_all();
        self.resources.wake_all();
        self.platform.wake_poller();
    }

    /// Waits while this node is suspended. Fails with `LinkDown` if it is no longer a member, or about to
    /// leave.
    pub(crate) async fn resumed(&self) -> Result<(), Error> {
        let standing = || {
            if self.is_fenced() {
                return Some(Err(Error::LinkDown));
            }
            (!self.lease.is_suspended()).then_some(Ok(()))
        };
        self.resumption.until(standing).await
    }

    /// Does the poller's part of a suspension; returns true if it has ended the membership.
    #[cold]
    fn sit_out(&self, now: Instant) -> bool {
        match self.lease.step(now) {
            Step::Wait => false,
            Step::Tell => {
                log::warn!(
                    "lite: the manager is silent, the lease has passed: {} posts nothing until it answers",
                    self.me
                );
                false
            }
            Step::End => {
                let silence = self.config.silence.unwrap_or_default();
                log::error!("lite: the manager has been silent for {silence:?}");
                self.fence();
                true
            }
        }
    }

    /// Ends this node's membership: nothing is issued any more, and nothing of its peers reaches its
    /// memory.
    pub(crate) fn fence(&self) {
        match self.lease.fence() {
            None => return,
            Some(Ended::Left) => log::info!("lite: {} has left", self.me),
            Some(Ended::Lost) => {
                log::error!("lite: {} has lost its membership", self.me);
                // The manager may not know it: perhaps all heartbeats arrived, and only the
                // acknowledgements were lost.
                let reason = "no answer to its heartbeats came in time".into();
                self.control.post(&ToManager::LastWords { reason });
            }
        }
        let mut links = Vec::new();
        for peer in self.peers.lock().values_mut() {
            links.push(mem::replace(&mut peer.link, crate::conn::PeerLink::Gone));
        }
        for link in links {
            self.retire(link);
        }
        let loopback = self.loopback.lock().take();
        if let Some(conn) = loopback {
            self.shut(&conn);
        }
        self.ops.lock().unfinished.forget_all_lost();
        self.drains.wake_all();
        self.waits.end_all(&Error::LinkDown);
        self.control.end();
        self.end_suspension();
        self.services.close_all();
        self.watchers.wake_all();
    }

    /// Counts a deadline that has passed.
    pub(crate) fn missed(&self) {
        self.counters.deadline_misses.add(1);
        self.trace(|| Event::Missed);
    }

    // ---- The poller ----

    pub(crate) fn poll(self: &Arc<Self>, now: Instant) -> bool {
        let Some(mut poller) = self.poller.try_lock() else { return false };
        let mut worked = false;
        self.look_at_lease(now);
        let suspended = self.lease.is_suspended();
        if suspended {
            worked = self.sit_out(now);
        }
        if self.served.len() > 0 {
            self.shut_served();
        }
        let closing = (self.closing.len() > 0).then(|| self.closing.take());
        worked |= self.take_completions(&mut poller, closing.is_some());
        if let Some(closing) = closing {
            poller.known = [const { None }; KNOWN];
            self.end_connections(closing);
            worked = true;
        }
        worked |= self.stalled.len() > 0 && !suspended && self.flush_stalled();
        // Connections are closed by agreement, through the manager.
        worked |= !suspended && self.sweep(now);
        worked |= self.expire_fast_path(now);
        worked |= self.expire_calls(now);
        worked |= self.timers.expire(now);
        worked
    }

    /// Ends connections whose queue pairs are destroyed and whose completions have been taken: other
    /// operations never complete.
    #[cold]
    fn end_connections(&self, closing: Vec<Arc<Conn>>) {
        for conn in closing {
            loop {
                let stranded = self.ops.lock().stranded(&conn);
                let Some(id) = stranded else { break };
                self.complete(id, Status::WorkRequestFlushed);
            }
            let forgotten = self.ops.lock().links.forget(&conn);
            drop(forgotten);
            self.make_sure(&conn);
        }
    }

    fn take_completions(self: &Arc<Self>, poller: &mut Poller, all: bool) -> bool {
        let Poller { batch, known } = poller;
        let mut worked = false;
        let mut batches = 0;
        while batches < BATCHES || all {
            batches += 1;
            let n = self.rnic.poll_cq(self.cq, batch).min(BATCH);
            worked |= n > 0;
            for completion in batch.iter().take(n) {
                match completion.kind {
                    WorkKind::Recv | WorkKind::RecvWriteImm => self.received(known, completion),
                    _ => {
                        if let Some(id) = OpId::from_wr_id(completion.id) {
                            self.complete(id, completion.status);
                        }
                    }
                }
            }
            if n < BATCH {
                break;
            }
        }
        worked
    }

    fn complete(&self, id: OpId, status: Status) {
        let done = status == Status::Success;
        let (failed, waker) = {
            let mut ops = self.ops.lock();
            let failed = if done { None } else { ops.conn_of(id) };
            (failed, ops.complete(id, status))
        };
        self.trace(|| Event::Ended { id: id.wr_id().0, ok: done });
        if let Some(conn) = failed {
            log::warn!("lite: connection to {} failed: {status:?}", conn.peer);
            self.fail(&conn);
        }
        self.finish(waker);
    }

    /// Wakes tasks that wait for the end of an operation, or for its resources.
    #[inline]
    pub(crate) fn finish(&self, waker: Option<Waker>) {
        self.drains.wake_all();
        if let Some(waker) = waker {
            waker.wake();
        }
        self.resources.wake_all();
    }

    /// Wakes the tasks whose calls are late; returns true if the calls were checked.
    fn expire_calls(&self, now: Instant) -> bool {
        if now.as_nanos() < self.earliest_call.load(Ordering::SeqCst) {
            return false;
        }
        self.earliest_call.store(u64::MAX, Ordering::SeqCst);
        let conns: Vec<_> = self.by_qp.lock().values().cloned().collect();
        let earliest = conns.iter().filter_map(|c| c.rpc.as_ref()).map(|rpc| rpc.expire(now)).min();
        if let Some(earliest) = earliest {
            self.earliest_call.fetch_min(earliest.as_nanos(), Ordering::SeqCst);
        }
        true
    }

    /// Returns the connection of a queue pair, unless it is closed.
    fn known<'k>(&self, known: &'k mut Known, qp: QpNum) -> Option<&'k Arc<Conn>> {
        let place = known.get_mut(qp.get() as usize % KNOWN)?;
        if !place.as_ref().is_some_and(|(number, conn)| *number == qp && !conn.is_shut()) {
            *place = self.by_qp.lock().get(&qp).map(|conn| (qp, conn.clone()));
        }
        place.as_ref().map(|(_, conn)| conn)
    }

    fn received(self: &Arc<Self>, known: &mut Known, completion: &Completion) {
        let Some(conn) = self.known(known, completion.qp) else { return };
        self.trace(|| Event::Arrived { peer: conn.peer });
        let imm = completion.imm.filter(|_| completion.status == Status::Success);
        match imm {
            Some(imm) => {
                if self.deliver(conn, imm).is_err() {
                    log::warn!("lite: {} breaks the RPC protocol", conn.peer);
                    self.fail(conn);
                }
                self.repost(conn);
            }
            None => self.fail(conn),
        }
    }

    /// Counts a consumed receive, and posts [`REPOSTED`] receives at once. The receive queue is deeper than
    /// necessary by more than that number.
    fn repost(&self, conn: &Arc<Conn>) {
        let Some(rpc) = &conn.rpc else { return };
        // Only the poller changes this count.
        let count = rpc.taken.load(Ordering::Relaxed) + 1;
        let now = count >= REPOSTED && !conn.is_shut();
        rpc.taken.store(if now { 0 } else { count }, Ordering::Relaxed);
        if !now {
            return;
        }
        if let Err(error) = conn.lanes().post_receives(count) {
            log::warn!("lite: cannot post receives for {}: {error}", conn.peer);
            self.fail(conn);
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if self.closing.len() > 0 {
            return Some(Instant::ZERO);
        }
        let timer = self.timers.next();
        let op = self.earliest_op.load(Ordering::Acquire);
        let op = op.min(self.earliest_call.load(Ordering::Acquire));
        let op = (op != u64::MAX).then(|| Instant::from_nanos(op));
        let lease = self.lease.next_deadline();
        if self.lease.is_suspended() {
            return [timer, op, lease].into_iter().flatten().min();
        }
        let again = self.stalled.len() + self.served.len() > 0;
        let stalled = again.then(|| self.platform.now() + STALLED_PAUSE);
        [timer, op, lease, stalled, self.next_sweep()].into_iter().flatten().min()
    }
}

impl Drop for Node {
    /// Destroys what this node has in the RNIC, since no poller runs any more.
    fn drop(&mut self) {
        self.peers.get_mut().clear();
        let loopback = self.loopback.get_mut().take();
        let conns = self.by_qp.get_mut().values().chain(&loopback);
        let served = conns.filter(|conn| matches!(conn.lanes().destroy(), Gone::NotYet { .. })).count();
        if served > 0 {
            self.ops.get_mut().bounce.lose();
        }
        if let Err(error) = self.rnic.destroy_cq(self.cq) {
            log::warn!("lite: cannot destroy {:?}: {error}", self.cq);
        }
    }
}
