//! The common part of the operations of a handle: the node that issues them, their time limit, and their
//! class.

use super::handle_shared::SharedTable;
use super::owner::RegionOwner;
use crate::base::local::Local;
use crate::base::qos::Class;
use crate::base::scope::Scoped;
use crate::transport::op::Transport;
use alloc::sync::Arc;
use core::time::Duration;
use platform::{Instant, Platform};

/// The data shared by a [`Lite`](crate::Lite) and the handles that come from it.
pub(crate) struct Issuer {
    pub(crate) node: Arc<RegionOwner>,
    /// The layer that the fast path needs, without the layers above it.
    pub(crate) transport: Arc<Transport>,
    pub(crate) local: Arc<Local>,
    pub(crate) class: Class,
    /// The data shared by the handles of this issuer.
    pub(crate) terms: SharedTable,
    pub(super) timeout_ns: u64,
    /// The scope whose end ends everything made through the handles, if there is one.
    pub(crate) scope: Scoped,
    /// The platform as applications see it.
    pub(crate) platform: Arc<dyn Platform>,
}

impl Issuer {
    pub(crate) fn new(node: Arc<RegionOwner>, timeout: Duration, class: Class) -> Arc<Self> {
        let timeout_ns = nanoseconds(timeout);
        let (terms, scope, platform) = (SharedTable::default(), Scoped::default(), node.platform.clone());
        let transport: &Arc<Transport> = &node;
        let transport = transport.clone();
        let local = transport.local.clone();
        Arc::new(Self { node, transport, local, class, terms, timeout_ns, scope, platform })
    }

    /// Returns a copy whose handles have a shared table of their own.
    fn copy(&self) -> Self {
        Self {
            node: self.node.clone(),
            transport: self.transport.clone(),
            local: self.local.clone(),
            class: self.class.clone(),
            terms: SharedTable::default(),
            timeout_ns: self.timeout_ns,
            scope: self.scope.clone(),
            platform: self.platform.clone(),
        }
    }

    /// Returns a copy with the time limit `timeout`.
    pub(crate) fn with_timeout(&self, timeout: Duration) -> Arc<Self> {
        Arc::new(Self { timeout_ns: nanoseconds(timeout), ..self.copy() })
    }

    /// Returns a copy whose operations have the class `class`.
    pub(crate) fn classed(&self, class: Class) -> Arc<Self> {
        Arc::new(Self { class, ..self.copy() })
    }

    /// Returns a copy whose objects belong to `scope`.
    pub(crate) fn scoped(&self, scope: Scoped, platform: Arc<dyn Platform>) -> Arc<Self> {
        Arc::new(Self { scope, platform, ..self.copy() })
    }

    /// Returns the time limit of an operation.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_ns)
    }

    /// Returns the deadline of an operation that begins now. Checks the lease as well.
    #[inline]
    pub(crate) fn deadline(&self) -> Instant {
        self.transport.deadline(self.timeout_ns)
    }
}

fn nanoseconds(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)
}
