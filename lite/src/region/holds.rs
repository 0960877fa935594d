//! The mappings of a node's handles, by the number of the mapping's stamp. An operation on the fast path
//! does not read this table, so a handle contains only the number.

use super::chunks::Chunks;
use super::mapping::Mapping;
use super::stamp::StampId;
use crate::lock::Mutex;
use crate::qos::MemoryCharge;
use alloc::sync::Arc;

/// The mapping of a handle and its clones.
pub(super) struct Hold {
    pub(super) mapping: Arc<Mapping>,
    /// True if the region has been freed through this mapping, so that nothing must be unmapped.
    pub(super) freed: bool,
    /// The memory that counts against the application's limit.
    pub(super) _charge: MemoryCharge,
}

#[derive(Default)]
struct Slot {
    handles: u32,
    hold: Option<Hold>,
}

/// The mappings of a node's handles. Each has a lock of its own, held for a moment.
#[derive(Default)]
pub(crate) struct Holds(Chunks<Mutex<Slot>>);

impl Holds {
    /// Adds the first handle of a mapping.
    pub(super) fn open(&self, hold: Hold) {
        if let Some(slot) = self.0.grow(hold.mapping.stamp.id().number()) {
            *slot.lock() = Slot { handles: 1, hold: Some(hold) };
        }
    }

    /// Counts one more handle.
    pub(super) fn more(&self, stamp: StampId) {
        if let Some(slot) = self.0.get(stamp.number()) {
            slot.lock().handles += 1;
        }
    }

    /// Counts one handle less, and returns the mapping if that was the last one.
    pub(super) fn fewer(&self, stamp: StampId) -> Option<Hold> {
        let mut slot = self.0.get(stamp.number())?.lock();
        slot.handles -= 1;
        if slot.handles == 0 { slot.hold.take() } else { None }
    }

    /// Calls `f` with the mapping of a handle.
    ///
    /// # Panics
    /// If no such handle exists.
    pub(super) fn with<R>(&self, stamp: StampId, f: impl FnOnce(&mut Hold) -> R) -> R {
        let slot = self.0.get(stamp.number());
        let mut slot = slot.expect("a handle's slot was made with it").lock();
        f(slot.hold.as_mut().expect("a handle keeps its mapping"))
    }
}
