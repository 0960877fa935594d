//! What the operations of a handle have in common: the node that issues them, how long they may take, and whose they are.

use crate::node::Node;
use crate::qos::Class;
use alloc::sync::Arc;
use core::time::Duration;
use platform::Instant;

/// Shared by a [`Lite`](crate::Lite) and the handles that come from it, so that an operation finds here what is the same for
/// all of them.
#[derive(Clone)]
pub(crate) struct Issuer {
    pub(crate) node: Arc<Node>,
    pub(crate) class: Class,
    patience_ns: u64,
}

impl Issuer {
    pub(crate) fn new(node: Arc<Node>, patience: Duration, class: Class) -> Arc<Self> {
        Arc::new(Self { node, class, patience_ns: nanoseconds(patience) })
    }

    /// The same with that patience.
    pub(crate) fn patient(&self, patience: Duration) -> Arc<Self> {
        Arc::new(Self { patience_ns: nanoseconds(patience), ..self.clone() })
    }

    /// The same for that class.
    pub(crate) fn classed(&self, class: Class) -> Arc<Self> {
        Arc::new(Self { class, ..self.clone() })
    }

    /// How long an operation may take.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_nanos(self.patience_ns)
    }

    /// Until when an operation that begins now may take.
    #[inline]
    pub(crate) fn deadline(&self) -> Instant {
        Instant::from_nanos(self.node.platform.now().as_nanos().saturating_add(self.patience_ns))
    }
}

fn nanoseconds(patience: Duration) -> u64 {
    u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX)
}
