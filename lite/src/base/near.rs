//! References to shared values whose counts belong to one core.

use alloc::sync::Arc;
use core::ops::Deref;

/// A reference to a value that several cores use. Each core makes one of its own ([`new`](Self::new)) and
/// clones only that, so that a clone changes a count that no other core changes.
#[allow(clippy::redundant_allocation, reason = "the outer count is the core's, the inner one is common")]
pub(crate) struct Near<T>(Arc<Arc<T>>);

impl<T> Near<T> {
    /// Makes a reference with a count of its own.
    pub(crate) fn new(shared: Arc<T>) -> Self {
        Self(Arc::new(shared))
    }
}

impl<T> Clone for Near<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Near<T> {
    type Target = Arc<T>;

    #[inline(always)]
    fn deref(&self) -> &Arc<T> {
        &self.0
    }
}
