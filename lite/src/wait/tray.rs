//! A list that is empty as a rule, which one load tells.

use crate::lock::Mutex;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

/// What is to be looked at later.
pub(crate) struct Tray<T> {
    /// As many as the list is long, once its lock is given back.
    count: AtomicUsize,
    list: Mutex<Vec<T>>,
}

impl<T> Default for Tray<T> {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), list: Mutex::default() }
    }
}

impl<T> Tray<T> {
    pub(crate) fn push(&self, thing: T) {
        let mut list = self.list.lock();
        list.push(thing);
        self.count.store(list.len(), Ordering::SeqCst);
    }

    /// How many there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Takes them all out.
    #[cold]
    pub(crate) fn take(&self) -> Vec<T> {
        let mut list = self.list.lock();
        self.count.store(0, Ordering::SeqCst);
        core::mem::take(&mut *list)
    }
}
