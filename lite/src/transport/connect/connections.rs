//! The layer of connections of a node.

use super::endpoint::Endpoint;
use super::vouching::Vouching;
use crate::base::lock::Mutex;
#[cfg(feature = "testing")]
use crate::base::member::MemberId;
use crate::base::wait::DeferredList;
use crate::base::writers::{AtomicBool, AtomicU64};
use crate::transport::conn::{Conn, Gone, PeerPermits};
use crate::transport::op::Transport;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
#[cfg(feature = "testing")]
use alloc::vec::Vec;
use core::ops::Deref;
#[cfg(feature = "testing")]
use proto::Attempt;
use verbs::{Attributes, Gid, MemoryKey, WrId};

/// The connections of a node. It extends [`Transport`].
pub(crate) struct Connections {
    pub(super) transport: Arc<Transport>,
    pub(crate) attributes: Attributes,
    pub(crate) gid: Gid,
    pub(crate) key: MemoryKey,
    /// The connections to peers by the identifier of their receives, until their queue pairs are destroyed.
    pub(crate) by_receive: Mutex<BTreeMap<WrId, Arc<Conn>>>,
    /// The identifier of the next connection's receives.
    pub(super) next_receive_id: AtomicU64,
    pub(crate) loopback: Mutex<Option<Arc<Conn>>>,
    /// The permits in use, of [`Config::peers`](crate::Config::peers).
    pub(crate) permits: PeerPermits,
    /// True while a task finds permits for waiting peers.
    pub(super) finding_room: AtomicBool,
    /// The time in nanoseconds at which the poller must check for unused connections.
    pub(super) next_sweep: AtomicU64,
    /// Connections whose queue pairs are destroyed, and whose completions may not all be taken.
    pub(crate) closing: DeferredList<Arc<Conn>>,
    /// The endpoint for datagrams of set-ups.
    pub(crate) endpoint: Endpoint,
    /// The means to check vouchers for this node.
    pub(crate) vouching: Vouching,
    /// The attempts that this node has accepted, each with the peer of the connection that it made.
    #[cfg(feature = "testing")]
    pub(crate) accepted: Mutex<Vec<(Attempt, MemberId)>>,
    /// Connections that have ended, and whose queue pairs the RNIC could not destroy yet.
    pub(crate) served: DeferredList<Arc<Conn>>,
}

impl Deref for Connections {
    type Target = Arc<Transport>;

    #[inline]
    fn deref(&self) -> &Arc<Transport> {
        &self.transport
    }
}

impl Drop for Connections {
    /// Destroys what this node has in the RNIC, since no poller runs any more.
    fn drop(&mut self) {
        self.transport.peers.lock().clear();
        self.endpoint.close();
        let loopback = self.loopback.get_mut().take();
        let conns = self.by_receive.get_mut().values().chain(&loopback);
        let served = conns.filter(|conn| matches!(conn.group().destroy(), Gone::NotYet { .. })).count();
        if served > 0 {
            self.transport.shards.iter().for_each(|shard| shard.ops.lock().lose_buffers());
        }
        for shard in self.transport.shards.iter() {
            if let Err(error) = self.transport.rnic.destroy_cq(shard.cq) {
                log::warn!("lite: cannot destroy {:?}: {error}", shard.cq);
            }
        }
    }
}
