//! What handles have in common: whose they are, where their regions lie, with what rights they were mapped, how long they are.
//! It is kept once for all of them, for how many lines of the processor's cache an operation takes decides what it costs at random.

use crate::Permissions;
use crate::issuer::Issuer;
use crate::lock::Mutex;
use crate::op::PlaceId;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};

/// The terms on which regions are operated on by the handles of one [`Issuer`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Where a region in one piece on another node was when it was mapped; `None`: there is no short way to it.
    pub(crate) place: Option<PlaceId>,
    /// Given when it was mapped.
    pub(crate) rights: Permissions,
    /// Bytes.
    pub(crate) len: u64,
}

type Key = (Option<u32>, u32, u64);

impl Extent {
    fn key(self) -> Key {
        (self.place.map(PlaceId::number), self.rights.bits(), self.len)
    }
}

/// Shared by all handles with the same.
pub(crate) struct Terms {
    pub(crate) by: Arc<Issuer>,
    pub(crate) extent: Extent,
}

/// The terms of an issuer's handles.
#[derive(Default)]
pub(crate) struct TermsTable(Mutex<BTreeMap<Key, Weak<Terms>>>);

impl TermsTable {
    /// How many there are.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl Terms {
    /// Those that there are, or new ones.
    pub(crate) fn of(by: &Arc<Issuer>, extent: Extent) -> Arc<Self> {
        let mut table = by.terms.0.lock();
        let entry = table.entry(extent.key()).or_default();
        entry.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Self { by: by.clone(), extent });
            *entry = Arc::downgrade(&new);
            new
        })
    }
}

impl Drop for Terms {
    fn drop(&mut self) {
        let mut table = self.by.terms.0.lock();
        // Others may have taken the place meanwhile.
        if table.get(&self.extent.key()).is_some_and(|entry| entry.strong_count() == 0) {
            table.remove(&self.extent.key());
        }
    }
}
