//! Permits for connected peers: as many as the completion queue has room for.

use crate::base::writers::{AtomicU32, Ordering};
use alloc::sync::Arc;

/// The number of permits in use.
pub(crate) type PeerPermits = Arc<AtomicU32>;

/// A permit, given back when dropped.
pub(crate) struct PeerPermit(PeerPermits);

impl PeerPermit {
    /// Takes a permit unless `most` are in use.
    pub(crate) fn take(permits: &PeerPermits, most: u32) -> Option<Self> {
        let one_more = |taken: u32| (taken < most).then_some(taken + 1);
        permits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).ok()?;
        Some(Self(permits.clone()))
    }

    /// Returns the number of permits in use.
    pub(crate) fn taken(permits: &PeerPermits) -> u32 {
        permits.load(Ordering::SeqCst)
    }
}

impl Drop for PeerPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
