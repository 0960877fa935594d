//! The data that handles share: their issuer, the location and length of their regions, and their rights.
//! It is kept once for all handles that have it in common, because the number of cache lines that an
//! operation reads decides the cost of random access.

use crate::Permissions;
use crate::base::lock::Mutex;
use crate::region::issuer::Issuer;
use crate::transport::op::MemberIndex;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};

/// The location, rights and length that handles of one [`Issuer`] may have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The node of a region that was in one piece on another node when it was mapped; `None`: the fast path
    /// does not apply.
    pub(crate) member: Option<MemberIndex>,
    /// The rights, as granted when the region was mapped.
    pub(crate) rights: Permissions,
    /// The length, in bytes.
    pub(crate) len: u64,
}

type Key = (Option<u32>, u32, u64);

impl Extent {
    fn key(self) -> Key {
        (self.member.map(MemberIndex::number), self.rights.bits(), self.len)
    }
}

/// The data shared by all handles that have the same issuer and extent.
pub(crate) struct HandleShared {
    pub(crate) by: Arc<Issuer>,
    pub(crate) extent: Extent,
}

/// The shared data of an issuer's handles.
#[derive(Default)]
pub(crate) struct SharedTable(Mutex<BTreeMap<Key, Weak<HandleShared>>>);

impl SharedTable {
    /// Returns the number of entries.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl HandleShared {
    /// Returns the entry of the handle's shared table for `extent`, and makes one if there is none.
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

impl Drop for HandleShared {
    fn drop(&mut self) {
        let mut table = self.by.terms.0.lock();
        // Another handle may have made a new entry meanwhile.
        if table.get(&self.extent.key()).is_some_and(|entry| entry.strong_count() == 0) {
            table.remove(&self.extent.key());
        }
    }
}
