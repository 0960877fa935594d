//! The state of RPC on a node.

use super::local::LocalReplies;
use super::service::ServiceTable;
use crate::base::local::Local;
use crate::base::wait::DeferredList;
use crate::transport::conn::Conn;
use crate::transport::connect::Connections;
use crate::transport::op::Transport;
use alloc::sync::Arc;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};
use platform::Instant;

/// The RPC layer of a node: its calls, and calls to it. It extends [`Connections`].
pub(crate) struct Rpc {
    conns: Arc<Connections>,
    /// Layers far below, which the calls use often.
    pub(super) transport: Arc<Transport>,
    pub(super) local: Arc<Local>,
    pub(crate) services: ServiceTable,
    pub(super) local_replies: LocalReplies,
    /// A time in nanoseconds that is not later than the earliest deadline of a waiting call.
    pub(crate) earliest_call: AtomicU64,
    /// Connections with messages that found no room.
    pub(crate) stalled: DeferredList<Arc<Conn>>,
}

impl Deref for Rpc {
    type Target = Arc<Connections>;

    #[inline]
    fn deref(&self) -> &Arc<Connections> {
        &self.conns
    }
}

impl Rpc {
    /// Returns true if a call may be late at `now`.
    #[inline]
    pub(crate) fn has_late(&self, now: Instant) -> bool {
        now.as_nanos() >= self.earliest_call.load(Ordering::SeqCst)
    }

    pub(crate) fn new(conns: Arc<Connections>) -> Self {
        let transport: Arc<Transport> = (*conns).clone();
        Self {
            local: transport.local.clone(),
            transport,
            conns,
            services: ServiceTable::default(),
            local_replies: LocalReplies::default(),
            earliest_call: AtomicU64::new(u64::MAX),
            stalled: DeferredList::default(),
        }
    }
}
