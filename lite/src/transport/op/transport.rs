//! The state of operations: the table, the buffers, and the RNIC to which they are posted.

use super::status::OpStatuses;
use super::table::OpTable;
use super::unfinished::Moment;
use super::validity::StampNumbers;
use super::work::MAX_INLINE;
use crate::Error;
use crate::base::bounce::{BouncePool, Buffers};
use crate::base::config::Config;
use crate::base::local::Local;
use crate::base::lock::Mutex;
use crate::base::standing::Standing;
use crate::base::wait::Waiters;
use crate::sometimes::sometimes;
use crate::transport::conn::peers::Peers;
use alloc::sync::Arc;
use core::ops::Deref;
use platform::Platform;
use verbs::Rnic;

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
    /// The memory of the operations' bounce buffers.
    pub(crate) buffers: Buffers,
    pub(crate) ops: Mutex<OpTable>,
    /// The published state of the operations.
    pub(crate) ends: OpStatuses,
    /// Tasks that wait for a slot, a bounce buffer or room in a queue pair.
    pub(crate) resources: Waiters,
    /// Tasks that wait until nothing of a mapping is on the wire.
    pub(crate) drains: Waiters,
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
    /// Makes the table of operations and their buffers. Fails with `NoMemory`.
    pub(crate) fn new(peers: Arc<Peers>, rnic: Arc<dyn Rnic>, config: &Config) -> Result<Self, Error> {
        let no_memory = |asked| Error::NoMemory { asked, free: peers.platform.memory().largest_free() };
        let bounce = BouncePool::new(&peers.platform, &config.bounce).map_err(no_memory)?;
        let (buffers, max_inline) =
            (bounce.buffers(), (rnic.attributes().max_inline as usize).min(MAX_INLINE));
        let max_sge = (rnic.attributes().max_sge as usize).max(1);
        let ops = OpTable::new(config.operations, bounce);
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
            buffers,
            ends: ops.ends(),
            ops: Mutex::new(ops),
            resources: Waiters::default(),
            drains: Waiters::default(),
            stamps: Mutex::default(),
        })
    }

    /// Returns the present moment, for [`is_settled`](Self::is_settled).
    pub(crate) fn moment(&self) -> Moment {
        self.ops.lock().unfinished.now()
    }

    /// Returns true if no operation that was given up or lost since then may still change memory.
    pub(crate) fn is_settled(&self, since: Moment) -> bool {
        let ops = self.ops.lock();
        !ops.unfinished.any(&(since..ops.unfinished.now()))
    }

    /// Waits until [`is_settled`](Self::is_settled) holds for the time from `since` to the call. It takes
    /// as long as the transport takes to give up, plus a message to the peer and back through the manager.
    pub(crate) async fn settled(&self, since: Moment) {
        let time = since..self.moment();
        if self.ops.lock().is_unsettled(&time) {
            sometimes!("a task waited for operations of unknown outcome");
        }
        self.drains.until(|| (!self.ops.lock().is_unsettled(&time)).then_some(())).await;
    }
}
