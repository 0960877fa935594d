//! The mappings of a node's handles, by the number of the mapping's stamp. An operation on the fast path
//! does not read this table, so a handle contains only the number.

use super::mapped::Mapping;
use crate::base::chunks::Chunks;
use crate::base::lock::Mutex;
use crate::base::qos::MemoryCharge;
use crate::transport::op::StampId;
use alloc::sync::Arc;

/// The mapping of a handle and its clones.
pub(super) struct HandleEntry {
    pub(super) mapping: Arc<Mapping>,
    /// True if the region has been freed through this mapping, so that nothing must be unmapped.
    pub(super) freed: bool,
    /// The memory that counts against the application's limit.
    pub(super) _charge: MemoryCharge,
}

#[derive(Default)]
struct HandleSlot {
    handles: u32,
    hold: Option<HandleEntry>,
}

/// The mappings of a node's handles. Each has a lock of its own, held for a moment.
#[derive(Default)]
pub(crate) struct HandleTable(Chunks<Mutex<HandleSlot>>);

impl HandleTable {
    /// Adds the first handle of a mapping.
    pub(super) fn open(&self, hold: HandleEntry) {
        if let Some(slot) = self.0.grow(hold.mapping.stamp.id().number()) {
            *slot.lock() = HandleSlot { handles: 1, hold: Some(hold) };
        }
    }

    /// Counts one more handle of the mapping with this stamp.
    pub(super) fn more(&self, stamp: StampId) {
        if let Some(slot) = self.0.get(stamp.number()) {
            slot.lock().handles += 1;
        }
    }

    /// Counts one handle less, and returns the mapping if that handle was the last one.
    pub(super) fn fewer(&self, stamp: StampId) -> Option<HandleEntry> {
        let mut slot = self.0.get(stamp.number())?.lock();
        slot.handles -= 1;
        if slot.handles == 0 { slot.hold.take() } else { None }
    }

    /// Calls `f` with the mapping of a handle.
    ///
    /// # Panics
    /// If no such handle exists.
    pub(super) fn with<R>(&self, stamp: StampId, f: impl FnOnce(&mut HandleEntry) -> R) -> R {
        let slot = self.0.get(stamp.number());
        let mut slot = slot.expect("a handle's slot was made with it").lock();
        f(slot.hold.as_mut().expect("a handle keeps its mapping"))
    }
}
