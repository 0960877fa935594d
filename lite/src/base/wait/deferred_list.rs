//! A list that is usually empty; one load tells whether it is.

use crate::base::lock::Mutex;
use crate::base::writers::{AtomicUsize, Ordering};
use alloc::vec::Vec;

/// Things that the poller looks at later.
pub(crate) struct DeferredList<T> {
    /// The length of the list, stored before its lock is released.
    count: AtomicUsize,
    list: Mutex<Vec<T>>,
}

impl<T> Default for DeferredList<T> {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), list: Mutex::default() }
    }
}

impl<T> DeferredList<T> {
    pub(crate) fn push(&self, thing: T) {
        let mut list = self.list.lock();
        list.push(thing);
        self.count.store(list.len(), Ordering::SeqCst);
    }

    /// Returns the number of entries.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Removes and returns all entries.
    #[cold]
    pub(crate) fn take(&self) -> Vec<T> {
        let mut list = self.list.lock();
        self.count.store(0, Ordering::SeqCst);
        core::mem::take(&mut *list)
    }
}
