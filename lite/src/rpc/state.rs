//! The state of RPC on a node.

use super::local::LocalReplies;
use super::service::ServiceTable;
use crate::base::local::Local;
use crate::base::wait::DeferredList;
use crate::base::writers::{AtomicU64, Ordering};
use crate::transport::conn::Conn;
use crate::transport::connect::Connections;
use crate::transport::op::Transport;
use alloc::sync::Arc;
use core::ops::Deref;
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
    earliest_call: AtomicU64,
    /// Connections with messages that found no room, and the shards of the messages.
    pub(crate) stalled: DeferredList<(Arc<Conn>, usize)>,
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
    pub(crate) fn has_late(&self, now: Instant) -> bool {
        now >= self.earliest_call()
    }

    /// Returns a time that is not later than the earliest deadline of a waiting call.
    pub(crate) fn earliest_call(&self) -> Instant {
        Instant::from_nanos(self.earliest_call.load(Ordering::SeqCst))
    }

    /// Notes the deadline of a call, which must be in its slot already.
    pub(crate) fn note_deadline(&self, deadline: Instant) {
        if deadline < self.earliest_call() {
            self.earliest_call.fetch_min(deadline.as_nanos(), Ordering::SeqCst);
            self.local.standing.due_by(deadline);
        }
    }

    /// Forgets all deadlines, before the poller looks at the slots.
    pub(crate) fn forget_deadlines(&self) {
        self.earliest_call.store(u64::MAX, Ordering::SeqCst);
    }

    pub(crate) fn new(conns: Arc<Connections>) -> Self {
        let transport: Arc<Transport> = (*conns).clone();
        Self {
            services: ServiceTable::default(),
            local: transport.local.clone(),
            transport,
            conns,
            local_replies: LocalReplies::default(),
            earliest_call: AtomicU64::new(u64::MAX),
            stalled: DeferredList::default(),
        }
    }
}
