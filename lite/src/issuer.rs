//! What the operations of a handle have in common: the node that issues them, how long they may take, and whose they are.

use crate::node::Node;
use crate::qos::Class;
use crate::region::TermsTable;
use alloc::sync::Arc;
use core::time::Duration;
use platform::Instant;

/// Shared by a [`Lite`](crate::Lite) and the handles that come from it, so that an operation finds here what is the same for
/// all of them.
pub(crate) struct Issuer {
    pub(crate) node: Arc<Node>,
    pub(crate) class: Class,
    /// Of its handles.
    pub(crate) terms: TermsTable,
    patience_ns: u64,
}

impl Issuer {
    pub(crate) fn new(node: Arc<Node>, patience: Duration, class: Class) -> Arc<Self> {
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        Arc::new(Self { node, class, terms: TermsTable::default(), patience_ns })
    }

    /// The same with that patience.
    pub(crate) fn patient(&self, patience: Duration) -> Arc<Self> {
        Self::new(self.node.clone(), patience, self.class.clone())
    }

    /// The same for that class.
    pub(crate) fn classed(&self, class: Class) -> Arc<Self> {
        Self::new(self.node.clone(), self.patience(), class)
    }

    /// How long an operation may take.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_nanos(self.patience_ns)
    }

    /// Until when an operation that begins now may take. Looks at the lease as well.
    #[inline]
    pub(crate) fn deadline(&self) -> Instant {
        let now = self.node.platform.now();
        self.node.look_at_lease(now);
        Instant::from_nanos(now.as_nanos().saturating_add(self.patience_ns))
    }
}
