//! What the operations of a handle have in common: the node that issues them, how long they may take, and whose they are.

use crate::node::Node;
use crate::qos::Class;
use crate::region::TermsTable;
use crate::scope::Scoped;
use alloc::sync::Arc;
use core::time::Duration;
use platform::{Instant, Platform};

/// Shared by a [`Lite`](crate::Lite) and the handles that come from it, so that an operation finds here what is the same for
/// all of them.
pub(crate) struct Issuer {
    pub(crate) node: Arc<Node>,
    pub(crate) class: Class,
    /// Of its handles.
    pub(crate) terms: TermsTable,
    patience_ns: u64,
    /// What ends, if anything, and with it all that is made through the handles.
    pub(crate) scope: Scoped,
    /// The platform as applications see it.
    pub(crate) platform: Arc<dyn Platform>,
}

impl Issuer {
    pub(crate) fn new(node: Arc<Node>, patience: Duration, class: Class) -> Arc<Self> {
        let patience_ns = nanoseconds(patience);
        let (terms, scope, platform) = (TermsTable::default(), Scoped::default(), node.platform.clone());
        Arc::new(Self { node, class, terms, patience_ns, scope, platform })
    }

    /// The same, with handles of its own.
    fn copy(&self) -> Self {
        Self {
            node: self.node.clone(),
            class: self.class.clone(),
            terms: TermsTable::default(),
            patience_ns: self.patience_ns,
            scope: self.scope.clone(),
            platform: self.platform.clone(),
        }
    }

    /// The same with that patience.
    pub(crate) fn patient(&self, patience: Duration) -> Arc<Self> {
        Arc::new(Self { patience_ns: nanoseconds(patience), ..self.copy() })
    }

    /// The same for that class.
    pub(crate) fn classed(&self, class: Class) -> Arc<Self> {
        Arc::new(Self { class, ..self.copy() })
    }

    /// The same in that scope.
    pub(crate) fn scoped(&self, scope: Scoped, platform: Arc<dyn Platform>) -> Arc<Self> {
        Arc::new(Self { scope, platform, ..self.copy() })
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

fn nanoseconds(patience: Duration) -> u64 {
    u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX)
}
