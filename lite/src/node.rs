//! One node: its layers, and the poller that drives them.

use crate::base::local::Local;
use crate::base::lock::Mutex;
use crate::base::per_shard::PerShard;
use crate::base::trace::Event;
use crate::base::writers::Ordering;
use crate::channel::Channel;
use crate::membership::Membership;
use crate::region::{Mappings, RegionMemory, RegionOwner};
use crate::rpc::{Caller, KnownServices, Rpc};
use crate::sync::SyncHome;
use crate::transport::conn::peers::Peers;
use crate::transport::conn::{Conn, REPOSTED};
use crate::transport::connect::{Arrivals, Connections};
use crate::transport::op::{BATCH, OpId, Shard, Transport, receive_of};
use crate::{Config, Error};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use core::time::Duration;
use platform::{ControlLink, Instant, Platform};
use proto::Welcome;
use verbs::{Completion, Rnic, Status, WorkKind, WrId};

/// The most batches of completions that one turn of the poller takes, unless a connection is being closed.
pub(crate) const BATCHES: usize = 16;
/// The number of connections that the poller caches.
const KNOWN: usize = 32;
/// The pause before messages that found no room, and queue pairs that the RNIC could not destroy, are tried
/// again.
const STALLED_PAUSE: Duration = Duration::from_millis(1);

/// One node. It extends [`Membership`], the highest layer.
pub(crate) struct Node {
    pub(crate) membership: Arc<Membership>,
    /// The layers that the poller drives.
    local: Arc<Local>,
    pub(crate) transport: Arc<Transport>,
    conns: Arc<Connections>,
    pub(crate) rpc: Arc<Rpc>,
    /// The pollers, by shard.
    pub(crate) pollers: PerShard<Mutex<Poller>>,
    /// Held by the core that does the rare work of the poller.
    rare_work: Mutex<()>,
}

impl Deref for Node {
    type Target = Arc<Membership>;

    #[inline]
    fn deref(&self) -> &Arc<Membership> {
        &self.membership
    }
}

/// The state that the poller of a shard keeps from one turn to the next.
// Two cache lines: the pollers belong to several cores.
#[repr(align(128))]
pub(crate) struct Poller {
    pub(crate) batch: [Completion; BATCH],
    pub(crate) inbox: Inbox,
}

/// The state that a poller needs for messages.
pub(crate) struct Inbox {
    callers: Callers,
    /// The functions to which requests go.
    services: KnownServices,
}

/// The peers that a poller has messages of.
struct Callers {
    /// The peers that messages have come from recently, by identifier of their connections' receives; others
    /// are looked up in [`Connections::by_receive`].
    known: Known,
    rpc: Arc<Rpc>,
    /// The shard, all of whose messages come to this poller.
    shard: usize,
}

type Known = [Option<(WrId, Arc<Caller>)>; KNOWN];

impl Node {
    /// Makes the layers of a node, from the lowest to the highest.
    pub(crate) fn new(
        platform: Arc<dyn Platform>,
        rnic: Arc<dyn Rnic>,
        (welcome, link): (&Welcome, &dyn ControlLink),
        config: Config,
    ) -> Result<Self, Error> {
        let config = config.checked();
        let local = Arc::new(Local::new(platform, (welcome, link), config.clone()));
        let peers = Arc::new(Peers::new(local.clone()));
        let transport = Arc::new(Transport::new(peers, rnic, &config)?);
        let conns = Arc::new(Connections::new(transport.clone(), welcome));
        let rpc = Arc::new(Rpc::new(conns.clone()));
        let sync = Arc::new(SyncHome::new(rpc.clone()));
        let mappings = Arc::new(Mappings::new(Arc::new(RegionMemory::new(rpc.clone()))));
        let regions = Arc::new(RegionOwner::new(mappings));
        let poller = |shard| {
            let callers = Callers { known: [const { None }; KNOWN], rpc: rpc.clone(), shard };
            let inbox = Inbox { callers, services: KnownServices::default() };
            Mutex::new(Poller { batch: [Completion::BLANK; BATCH], inbox })
        };
        let pollers = PerShard::new(transport.shards.count(), poller);
        Ok(Self {
            membership: Arc::new(Membership::new(regions, sync)),
            local,
            transport,
            conns,
            rpc,
            pollers,
            rare_work: Mutex::default(),
        })
    }

    /// Returns the layer of regions.
    pub(crate) fn regions(&self) -> &Arc<RegionOwner> {
        &self.membership
    }

    /// Serves the requests of other nodes.
    pub(crate) fn start_services(&self) {
        self.start_internal(self.regions().clone());
        self.start_internal(self.sync.clone());
        Arrivals(self.conns.clone()).start();
    }

    // ---- The poller ----

    /// Takes completions, and does the rare work before and after them, unless another core does. Returns
    /// true if there was work.
    #[cold]
    pub(crate) fn full_turn(self: &Arc<Self>, shard: &Shard, now: Instant) -> bool {
        let Some(_rare_work) = self.rare_work.try_lock() else { return self.take_completions(shard) };
        let before = self.begin_turn(now);
        let completions = self.take_completions(shard);
        before | completions | self.end_turn(now)
    }

    /// Does the work that must precede completions. Returns true if there was some.
    fn begin_turn(self: &Arc<Self>, now: Instant) -> bool {
        self.local.lease.begin_turn();
        self.local.look_at_lease(now);
        let mut worked = self.local.lease.is_suspended() && self.sit_out(now);
        if self.conns.served.len() > 0 {
            self.conns.shut_served();
        }
        if self.conns.closing.len() > 0 {
            self.end_connections();
            worked = true;
        }
        worked
    }

    /// Takes completions of a shard, unless another core does; returns true if there were any.
    fn take_completions(self: &Arc<Self>, shard: &Shard) -> bool {
        let poller = self.pollers.get(shard.index).and_then(Mutex::try_lock);
        let Some(mut poller) = poller else { return false };
        let Poller { batch, inbox } = &mut *poller;
        self.transport.take_completions(shard, batch, BATCHES, |other| self.other_completion(inbox, other))
    }

    /// Does the work that may follow completions. Returns true if there was some.
    fn end_turn(self: &Arc<Self>, now: Instant) -> bool {
        let suspended = self.local.lease.is_suspended();
        let mut worked = self.rpc.stalled.len() > 0 && !suspended && self.rpc.flush_stalled();
        // Connections are closed by agreement, through the manager.
        worked |= !suspended && self.conns.sweep(now);
        worked |= self.transport.wake_late(now);
        if self.rpc.has_late(now) {
            self.expire_calls(now);
            worked = true;
        }
        worked |= self.local.timers.expire(now);
        // What is set from here on lowers the time by itself.
        let bounds = [
            self.local.timers.bound(),
            self.transport.earliest_deadline(),
            self.rpc.earliest_call(),
            self.conns.next_sweep().unwrap_or(Instant::MAX),
        ];
        bounds.into_iter().for_each(|at| self.local.standing.due_by(at));
        worked
    }

    /// Takes all completions of connections whose queue pairs are destroyed, and ends the connections: other
    /// operations never complete.
    fn end_connections(self: &Arc<Self>) {
        let closing = self.conns.closing.take();
        for (shard, poller) in self.transport.shards.iter().zip(self.pollers.iter()) {
            // A core that takes completions waits for nothing meanwhile.
            let Poller { batch, inbox } = &mut *poller.lock();
            let other = |other: &_| self.other_completion(inbox, other);
            self.transport.take_completions(shard, batch, usize::MAX, other);
            inbox.callers.known = [const { None }; KNOWN];
        }
        for conn in closing {
            for shard in self.transport.shards.iter() {
                loop {
                    let stranded = shard.ops.lock().stranded(&conn);
                    let Some(id) = stranded else { break };
                    self.failed(id, Status::WorkRequestFlushed);
                }
                let forgotten = shard.ops.lock().links.forget(&conn);
                drop(forgotten);
            }
            self.conns.confirm_end(&conn);
        }
    }

    /// Handles a completion that is not the success of an operation.
    #[inline(never)]
    pub(crate) fn other_completion(&self, inbox: &mut Inbox, completion: &Completion) {
        if matches!(completion.kind, WorkKind::Recv | WorkKind::RecvWriteImm) {
            self.received(inbox, completion);
        } else if let Some(receive) = receive_of(completion.id) {
            let caller = self.caller(&mut inbox.callers, receive);
            if let Some(caller) = caller.filter(|caller| !caller.conn.is_shut()) {
                log::warn!("lite: connection to {} failed: {:?}", caller.conn.peer, completion.status);
                self.conns.fail(&caller.conn);
            }
        } else if let Some(id) = OpId::from_wr_id(completion.id) {
            self.failed(id, completion.status);
        } else {
            self.datagram(completion);
        }
    }

    /// Handles a completion that is neither an operation's nor that of a connection's receive.
    #[cold]
    #[inline(never)]
    fn datagram(&self, completion: &Completion) {
        self.conns.endpoint.completed(completion);
    }

    /// Ends an operation that has failed, and its connection.
    #[cold]
    fn failed(&self, id: OpId, status: Status) {
        let shard = self.transport.shards.of(id);
        let (failed, wakes) = {
            let mut ops = shard.ops.lock();
            (ops.conn_of(id), ops.complete(id, status))
        };
        self.local.trace(|| Event::Ended { id: id.wr_id().0, ok: false });
        if let Some(conn) = failed {
            log::warn!("lite: connection to {} failed: {status:?}", conn.peer);
            self.conns.fail(&conn);
        }
        shard.wake(wakes);
    }

    /// Wakes the tasks whose calls are late.
    #[cold]
    fn expire_calls(&self, now: Instant) {
        self.rpc.forget_deadlines();
        let conns: Vec<_> = self.conns.by_receive.lock().values().cloned().collect();
        let earliest = conns.iter().flat_map(|c| c.channels()).map(|rpc| rpc.expire(now)).min();
        if let Some(earliest) = earliest {
            self.rpc.note_deadline(earliest);
        }
    }

    /// Returns the peer whose connection has that identifier of receives, unless it is closed.
    #[inline(always)]
    fn caller<'c>(&self, callers: &'c mut Callers, receive: WrId) -> Option<&'c Arc<Caller>> {
        let place = callers.known.get(receive.0 as usize % KNOWN)?;
        if !place.as_ref().is_some_and(|(id, caller)| *id == receive && !caller.conn.is_shut()) {
            self.find_caller(callers, receive);
        }
        callers.known.get(receive.0 as usize % KNOWN)?.as_ref().map(|(_, caller)| caller)
    }

    /// Looks for the peer whose connection has that identifier of receives, and notes the result.
    #[cold]
    fn find_caller(&self, callers: &mut Callers, receive: WrId) {
        let conn = self.conns.by_receive.lock().get(&receive).cloned();
        let caller = conn.and_then(|conn| Caller::new(&callers.rpc, conn, callers.shard));
        if let Some(place) = callers.known.get_mut(receive.0 as usize % KNOWN) {
            *place = caller.map(|caller| (receive, Arc::new(caller)));
        }
    }

    fn received(&self, inbox: &mut Inbox, completion: &Completion) {
        let Some(caller) = self.caller(&mut inbox.callers, completion.id) else {
            return self.datagram(completion);
        };
        let conn = &caller.conn;
        self.local.trace(|| Event::Arrived { peer: conn.peer });
        let imm = completion.imm.filter(|_| completion.status == Status::Success);
        match imm {
            Some(imm) => {
                if caller.deliver(imm, &mut inbox.services).is_err() {
                    log::warn!("lite: {} breaks the RPC protocol", conn.peer);
                    self.conns.fail(conn);
                }
                self.repost(conn, &caller.channel);
            }
            None => self.conns.fail(conn),
        }
    }

    /// Counts a consumed receive, and posts [`REPOSTED`] receives at once. The receive queue is deeper than
    /// necessary by more than that number.
    fn repost(&self, conn: &Arc<Conn>, channel: &Channel) {
        // Only the poller of the shard changes this count.
        let count = channel.taken.load(Ordering::Relaxed) + 1;
        let now = count >= REPOSTED && !conn.is_shut();
        channel.taken.store(if now { 0 } else { count }, Ordering::Relaxed);
        if !now {
            return;
        }
        if let Err(error) = conn.group().post_receives(channel.shard, count) {
            log::warn!("lite: cannot post receives for {}: {error}", conn.peer);
            self.conns.fail(conn);
        }
    }

    /// Returns the time by which the poller of a core beyond the first must run. The first one serves the
    /// deadlines of the node; what a poller has deferred concerns all.
    pub(crate) fn next_deadline_of(&self, shard: usize) -> Option<Instant> {
        let at = self.transport.shards.at(shard).ops.lock().earliest();
        [(at != Instant::MAX).then_some(at), self.deferred()].into_iter().flatten().min()
    }

    /// Returns the time by which a poller must look at what was deferred.
    fn deferred(&self) -> Option<Instant> {
        if self.conns.closing.len() > 0 {
            return Some(Instant::ZERO);
        }
        let again = self.rpc.stalled.len() + self.conns.served.len() > 0;
        let again = again && !self.local.lease.is_suspended();
        again.then(|| self.local.platform.now() + STALLED_PAUSE)
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let timer = self.local.timers.next();
        let op = self.transport.earliest_deadline().min(self.rpc.earliest_call());
        let op = (op != Instant::MAX).then_some(op);
        let lease = self.local.lease.next_deadline();
        let sweep = self.conns.next_sweep().filter(|_| !self.local.lease.is_suspended());
        [timer, op, lease, self.deferred(), sweep].into_iter().flatten().min()
    }
}
