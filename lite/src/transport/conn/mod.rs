//! Connections: the queue pairs that two nodes share.

mod lanes;
pub(crate) mod peers;
mod permits;
mod qp_group;

pub(crate) use lanes::QueuePair;
pub(crate) use permits::{PeerPermit, PeerPermits};
pub(crate) use qp_group::{Gone, PeerResources, QpGroup, REPOSTED};

use crate::base::lock::Mutex;
use crate::base::per_shard::PerShard;
use crate::base::writers::{AtomicBool, AtomicU32, Ordering};
use crate::channel::Channel;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::time::Duration;
use platform::Instant;
use proto::{Incarnation, NodeId};
use verbs::MemoryKey;

/// The number of a connection in the table of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Link(u32);

impl Link {
    /// The number of a connection that is not in the table.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The time for which a connection stays open after its last use, so that a task that has just got it can
/// use it.
pub(crate) const STAY: Duration = Duration::from_millis(5);

/// The time for which a peer that uses a connection is not asked again.
const REFUSED: Duration = Duration::from_millis(20);

/// The observed use of a connection.
#[derive(Default)]
struct Seen {
    /// The work requests posted, at the last look.
    begun: u32,
    /// The time at which `begun` last changed.
    since: Instant,
    /// The time from which the peer may be asked whether it uses the connection.
    ask_from: Instant,
}

/// A connection to one incarnation of one peer: queue pairs that are created and destroyed together, as many
/// for each shard. The shards of both nodes with the same number are connected; a connection has queue pairs
/// for as many shards as the node with fewer shards has.
///
/// A connection is never repaired. When any queue pair fails, all are destroyed, and the next use opens a
/// new connection; the peer destroys its side before it answers. So everything that arrives on a connection
/// was sent after its predecessor's end. An unused connection may be closed by agreement, because
/// its permit is wanted for another peer or because it is idle.
pub(crate) struct Conn {
    pub(crate) peer: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) remote_key: MemoryKey,
    /// The number of the attempt that made the connection, the same at both ends.
    pub(crate) id: u64,
    pub(crate) group: QpGroup,
    seen: Mutex<Seen>,
    /// The numbers of the connection in the tables of the shards, each written only under its table's lock.
    links: Box<[AtomicU32]>,
    /// True if the peer waits to be told that the queue pairs here are destroyed.
    owes_closed: AtomicBool,
    /// True if this node has found the connection broken.
    failed: AtomicBool,
    /// The RPC state of the connection, by shard; none on the loop-back connection.
    pub(crate) channels: Option<PerShard<Arc<Channel>>>,
}

impl Conn {
    pub(crate) fn new(
        peer: NodeId,
        incarnation: Incarnation,
        remote_key: MemoryKey,
        id: u64,
        group: QpGroup,
        channels: Option<PerShard<Arc<Channel>>>,
    ) -> Self {
        let links = (0..group.lanes.shards()).map(|_| AtomicU32::new(Link::NONE.bits())).collect();
        Self {
            peer,
            incarnation,
            remote_key,
            id,
            group,
            seen: Mutex::default(),
            links,
            owes_closed: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            channels,
        }
    }

    /// Returns the number of the connection in the table of a shard.
    pub(crate) fn link(&self, shard: usize) -> Link {
        self.links.get(shard).map_or(Link::NONE, |link| Link::from_bits(link.load(Ordering::Relaxed)))
    }

    pub(crate) fn set_link(&self, shard: usize, link: Link) {
        if let Some(place) = self.links.get(shard) {
            place.store(link.bits(), Ordering::Relaxed);
        }
    }

    /// Returns the shard whose queue pairs the cores of shard `here` use: their own, unless the peer has
    /// fewer.
    pub(crate) fn shard_for(&self, here: usize) -> usize {
        here % self.group.lanes.shards().max(1)
    }

    /// Returns the RPC state of a shard.
    #[inline(always)]
    pub(crate) fn channel(&self, shard: usize) -> Option<&Channel> {
        self.channels.as_ref()?.get(shard).map(|channel| &**channel)
    }

    /// Returns the RPC states of all shards.
    pub(crate) fn channels(&self) -> impl Iterator<Item = &Channel> {
        self.channels.iter().flat_map(PerShard::iter).map(|channel| &**channel)
    }

    pub(crate) fn queue_pair(&self, qp_index: usize) -> Option<&QueuePair> {
        self.group.lanes.get(qp_index)
    }

    pub(crate) fn group(&self) -> &QpGroup {
        &self.group
    }

    /// Returns the time for which this node has posted nothing, as far as it has looked. Traffic of the
    /// peer is answered and does not count.
    pub(crate) fn unused(&self, now: Instant) -> Duration {
        let begun = self.group.lanes.begun();
        let mut seen = self.seen.lock();
        if seen.begun != begun {
            (seen.begun, seen.since) = (begun, now);
        }
        now.saturating_since(seen.since)
    }

    /// Counts the connection as used now.
    pub(crate) fn touch(&self, now: Instant) {
        let begun = self.group.lanes.begun();
        let mut seen = self.seen.lock();
        (seen.begun, seen.since) = (begun, now);
    }

    /// Notes that the peer uses it, so that it is not asked for a while.
    pub(crate) fn refused(&self, now: Instant) {
        self.seen.lock().ask_from = now + REFUSED;
    }

    /// Returns true if the peer may be asked whether it uses the connection.
    pub(crate) fn may_ask(&self, now: Instant) -> bool {
        self.seen.lock().ask_from <= now
    }

    /// Returns true if nothing is posted on it any more: its queue pairs are destroyed, or are about to be.
    pub(crate) fn is_shut(&self) -> bool {
        self.group.lanes.is_ending()
    }

    pub(crate) fn note_failure(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Returns whether this node has found the connection broken, and not been told so by the peer.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub(crate) fn owe_closed(&self) {
        self.owes_closed.store(true, Ordering::SeqCst);
    }

    /// Returns true, once, if the peer must be told now.
    pub(crate) fn pays_closed(&self) -> bool {
        self.owes_closed.swap(false, Ordering::SeqCst)
    }
}
