//! Connections: the queue pairs that two nodes share.

mod broker;
mod lanes;
mod wire;

pub(crate) use broker::{Peer, PeerLink};
pub(crate) use lanes::Lanes;
pub(crate) use wire::RpcArea;

use crate::qos::Share;
use crate::rpc::ConnRpc;
use core::sync::atomic::{AtomicU32, Ordering};
use lanes::Lane;
use proto::{Incarnation, NodeId};
use verbs::MemoryKey;

/// The lane of RPC.
pub(crate) const RPC_LANE: usize = 0;

/// A connection to one life of one peer: K queue pairs that live and die together.
///
/// It is never repaired. When any queue pair fails, all are destroyed, and the next use opens a new connection; the peer
/// destroys its side before it answers. So whatever arrives on a connection was sent after its predecessor fell silent.
pub(crate) struct Conn {
    pub(crate) peer: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) remote_key: MemoryKey,
    /// Which attempt made it, the same at both ends.
    pub(crate) id: u64,
    lanes: Lanes,
    next: AtomicU32,
    /// None on the loop-back connection.
    pub(crate) rpc: Option<ConnRpc>,
}

impl Conn {
    pub(crate) fn new(
        peer: NodeId,
        incarnation: Incarnation,
        remote_key: MemoryKey,
        id: u64,
        lanes: Lanes,
        rpc: Option<ConnRpc>,
    ) -> Self {
        Self { peer, incarnation, remote_key, id, lanes, next: AtomicU32::new(0), rpc }
    }

    pub(crate) fn lane(&self, lane: usize) -> Option<&Lane> {
        self.lanes.lanes.get(lane)
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// The lane for the next one-sided operation: in turn, sparing that of RPC if there are others.
    pub(crate) fn pick(&self, share: Share) -> usize {
        let n = self.lanes.lanes.len() as u32;
        let (first, count) = match share {
            _ if n < 2 => return RPC_LANE,
            Share::All => (1, n - 1),
            Share::Low => (n - 1, 1),
            Share::High if n == 2 => return RPC_LANE,
            Share::High => (1, n - 2),
        };
        if count == 1 {
            return first as usize;
        }
        (first + self.next.fetch_add(1, Ordering::Relaxed) % count) as usize
    }

    /// Whether its queue pairs are destroyed.
    pub(crate) fn is_shut(&self) -> bool {
        self.lanes.is_destroyed()
    }
}
