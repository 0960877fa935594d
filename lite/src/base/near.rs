//! References to shared values whose counts belong to one core.

use alloc::sync::Arc;
use core::ops::Deref;

/// A reference to a value that several cores use. Each core makes one of its own ([`new`](Self::new)) and
/// clones only that, so that a clone changes a count that no other core changes.
pub(crate) struct Near<T>(Arc<Apart<T>>);

/// A common reference, in cache lines that have the count of no other core.
// Two cache lines, because processors fetch lines in pairs.
#[repr(align(128))]
struct Apart<T>(Arc<T>);

impl<T> Near<T> {
    /// Makes a reference with a count of its own.
    pub(crate) fn new(shared: Arc<T>) -> Self {
        Self(Arc::new(Apart(shared)))
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
        &self.0.0
    }
}
