//! The state of operations: the tables, the buffers, and the RNIC to which they are posted.

use super::links::{MemberIndex, MemberNumbers};
use super::table::{OpTable, Shard, Shards};
use super::unfinished::{Moment, Unfinished};
use super::validity::{StampId, StampNumbers};
use super::work::MAX_INLINE;
use crate::Error;
use crate::base::bounce::BouncePool;
use crate::base::config::Config;
use crate::base::local::Local;
use crate::base::lock::Mutex;
use crate::base::member::MemberId;
use crate::base::near::Near;
use crate::base::per_shard::PerShard;
use crate::base::qos::Share;
use crate::base::standing::Standing;
use crate::base::wait::Waiters;
use crate::sometimes::sometimes;
use crate::transport::conn::Conn;
use crate::transport::conn::peers::Peers;
use crate::transport::connect::endpoint;
use alloc::sync::Arc;
use core::ops::{Deref, Range};
use platform::Platform;
use proto::NodeId;
use verbs::{Completion, CqOptions, Rnic, VerbsError};

/// The operations of a node. It extends [`Peers`].
pub(crate) struct Transport {
    peers: Arc<Peers>,
    /// The lowest layer, which the fast path uses.
    pub(crate) local: Arc<Local>,
    pub(crate) standing: Arc<Standing>,
    pub(super) platform: Arc<dyn Platform>,
    pub(crate) rnic: Arc<dyn Rnic>,
    /// The longest payload of a work request without a bounce buffer, in bytes.
    pub(crate) max_inline: usize,
    /// The most elements of a work request's list.
    pub(crate) max_sge: usize,
    /// The most bytes that one work request moves.
    pub(crate) chunk: usize,
    /// The most work requests that may be outstanding on one queue pair.
    pub(crate) send_depth: u32,
    /// The operations in flight, by core.
    pub(crate) shards: Shards,
    /// The operations of all cores that are unfinished.
    pub(crate) unfinished: Arc<Mutex<Unfinished>>,
    /// The numbers of the incarnations of peers.
    pub(super) members: Mutex<MemberNumbers>,
    /// Tasks that wait for a slot, a bounce buffer or room in a queue pair.
    pub(crate) resources: Arc<Waiters>,
    /// Tasks that wait until nothing of a mapping is on the wire.
    pub(crate) drains: Arc<Waiters>,
    /// The numbers of mappings.
    pub(super) stamps: Mutex<StampNumbers>,
}

impl Deref for Transport {
    type Target = Arc<Peers>;

    #[inline]
    fn deref(&self) -> &Arc<Peers> {
        &self.peers
    }
}

impl Transport {
    /// Makes the tables of operations, their buffers and completion queues. Fails with `NoMemory`, and with
    /// `Refused` if the RNIC has too few completion queues.
    pub(crate) fn new(peers: Arc<Peers>, rnic: Arc<dyn Rnic>, config: &Config) -> Result<Self, Error> {
        let no_memory = |asked| Error::NoMemory { asked, free: peers.platform.memory().largest_free() };
        let refused = |depth: usize, e| match e {
            VerbsError::NoResources => no_memory((depth * size_of::<Completion>()) as u64),
            e => Error::Refused(alloc::format!("no completion queue: {e}")),
        };
        let unfinished = Arc::<Mutex<Unfinished>>::default();
        let (resources, drains) = (Arc::<Waiters>::default(), Arc::<Waiters>::default());
        // The operations with slots, the receives, the messages without slots, all of which complete if their
        // queue pair fails, and on the first core the datagrams.
        let depth = config.operations + config.peers * (config.recv_depth() + config.send_depth);
        let shard = |index| {
            let bounce = BouncePool::new(&peers.platform, &config.bounce).map_err(no_memory)?;
            let depth = if index == 0 { depth + endpoint::DEPTH } else { depth };
            let created = rnic.create_cq(CqOptions { depth });
            let (buffers, cq) = (bounce.buffers(), created.map_err(|e| refused(depth as usize, e))?);
            let ops = OpTable::new(index, config.operations, bounce, &unfinished);
            let (ends, waiters) = (ops.ends(), [drains.clone(), resources.clone()]);
            Ok(Shard { index, cq, buffers, ends, ops: Mutex::new(ops), waiters })
        };
        let shards = Shards::new(PerShard::try_new(config.shards(&*peers.platform), shard)?);
        let max_inline = (rnic.attributes().max_inline as usize).min(MAX_INLINE);
        let max_sge = (rnic.attributes().max_sge as usize).max(1);
        Ok(Self {
            local: (*peers).clone(),
            standing: peers.standing.clone(),
            platform: peers.platform.clone(),
            peers,
            rnic,
            max_inline,
            max_sge,
            chunk: config.bounce[2].0 as usize,
            send_depth: config.send_depth,
            shards,
            unfinished,
            members: Mutex::default(),
            resources,
            drains,
            stamps: Mutex::default(),
        })
    }

    /// Returns the index of the queue pair of `conn` for the next one-sided operation of the present core.
    pub(crate) fn pick(&self, conn: &Conn, share: Share) -> usize {
        let here = self.shards.here(&*self.platform);
        conn.group.lanes.pick(conn.shard_for(here.index), share)
    }

    /// Returns the present moment, for [`is_settled`](Self::is_settled).
    pub(crate) fn moment(&self) -> Moment {
        self.unfinished.lock().now()
    }

    /// Returns true if no operation that was given up or lost since then may still change memory.
    pub(crate) fn is_settled(&self, since: Moment) -> bool {
        let unfinished = self.unfinished.lock();
        !unfinished.any(&(since..unfinished.now()))
    }

    /// Waits until [`is_settled`](Self::is_settled) holds for the time from `since` to the call. It takes
    /// as long as the transport takes to give up, plus a message to the peer and back through the manager.
    pub(crate) async fn settled(&self, since: Moment) {
        let time = since..self.moment();
        if self.is_unsettled(&time) {
            sometimes!("a task waited for operations of unknown outcome");
        }
        self.drains.until(|| (!self.is_unsettled(&time)).then_some(())).await;
    }

    /// Returns true if an operation that was given up or lost in that time may still change memory. The next
    /// end of an operation of any core wakes the tasks that wait for a change.
    fn is_unsettled(&self, time: &Range<Moment>) -> bool {
        if !self.unfinished.lock().any(time) {
            return false;
        }
        // An operation that ends after this wakes the task, and one that has ended before is not noted any
        // more.
        self.want();
        self.unfinished.lock().any(time)
    }

    /// Returns true if an operation through that mapping is on the wire, or may still change its memory. The
    /// next end of an operation wakes the tasks that wait for a change.
    pub(crate) fn passes(&self, stamp: StampId) -> bool {
        // An operation is noted as unfinished under the lock of its table: if it is on the wire no more, it
        // has been noted.
        self.shards.iter().any(|shard| shard.ops.lock().passes(stamp)) || self.unfinished.lock().passes(stamp)
    }

    /// Returns true if no operation of any core is on the wire.
    pub(crate) fn has_nothing_in_flight(&self) -> bool {
        self.shards.iter().all(|shard| shard.ops.lock().is_idle())
    }

    /// Stops posting on `conn` if nothing of it is on the wire; returns true if that is the case.
    pub(crate) fn seal(&self, conn: &Conn) -> bool {
        let all = || self.shards.iter().take(conn.group.lanes.shards());
        let is_busy = |shard: &Shard| {
            let ops = shard.ops.lock();
            let sealed = conn.group.lanes.seal(shard.index);
            drop(ops);
            !sealed
        };
        match all().position(is_busy) {
            None => true,
            // The queue pairs of the shards before the busy one are opened again, for the posts
            // that they have refused meanwhile.
            Some(before) => {
                self.unseal_first(conn, before);
                false
            }
        }
    }

    /// Reverts [`seal`](Self::seal).
    pub(crate) fn unseal(&self, conn: &Conn) {
        self.unseal_first(conn, conn.group.lanes.shards());
    }

    /// Lets operations use the queue pairs of the first `count` shards again.
    fn unseal_first(&self, conn: &Conn, count: usize) {
        for shard in self.shards.iter().take(count) {
            let ops = shard.ops.lock();
            conn.group.lanes.unseal(shard.index);
            drop(ops);
        }
        if count > 0 {
            conn.channels().for_each(|channel| channel.room.wake_all());
            self.resources.wake_all();
        }
    }

    // ---- Connections and incarnations ----

    /// Returns the number of that incarnation.
    pub(crate) fn index_of(&self, member: MemberId) -> MemberIndex {
        self.members.lock().index_of(member)
    }

    /// Returns the incarnation with that number.
    pub(crate) fn member(&self, index: MemberIndex) -> Option<MemberId> {
        self.members.lock().member(index)
    }

    /// Returns the connection for one-sided operations of the present core to that incarnation of that node,
    /// and the shard that has the queue pairs for them.
    pub(crate) fn conn_here(&self, member: MemberId) -> Option<(Arc<Conn>, &Shard)> {
        let here = self.shards.here(&*self.platform);
        let ops = here.ops.lock();
        let (conn, shard) = ops.links.conn(member)?;
        Some((conn.clone(), self.shards.at(shard)))
    }

    /// Returns the connection to a node, if there is one, for a call of the present core. Counts the call
    /// then.
    #[inline]
    pub(crate) fn near_for_call(&self, node: NodeId) -> Option<Near<Conn>> {
        let here = self.shards.here(&*self.platform);
        let mut ops = here.ops.lock();
        let known = ops.links.near(node);
        if known.is_some() {
            ops.fast_path.calls += 1;
            return known;
        }
        drop(ops);
        self.find_near(here, node)
    }

    #[cold]
    fn find_near(&self, here: &Shard, node: NodeId) -> Option<Near<Conn>> {
        let near = Near::new(self.connected(node)?);
        let mut ops = here.ops.lock();
        let former = ops.links.set_near(&near);
        ops.fast_path.calls += 1;
        drop(ops);
        drop(former);
        Some(near)
    }

    /// Makes the next end of an operation of each core wake the tasks that wait for resources or for ends.
    pub(crate) fn want(&self) {
        self.shards.iter().for_each(|shard| shard.ops.lock().want());
    }

    /// Lets the one-sided operations of the present core use a connection.
    pub(crate) fn remember(&self, conn: &Arc<Conn>) {
        let index = self.index_of((conn.peer, conn.incarnation));
        let here = self.shards.here(&*self.platform);
        let used = conn.shard_for(here.index);
        if used != here.index {
            // The peer has fewer cores. The operations find the shard that they use by the route.
            self.standing.mix();
            here.ops.lock().links.redirect(conn, index, used);
        }
        self.shards.at(used).ops.lock().links.remember(conn, index);
    }
}
