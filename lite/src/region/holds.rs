//! What the handles of a node stand for, by the number of their mapping's stamp: an operation on the short way does not look
//! here, so it need not be in the handle.

use super::chunks::Chunks;
use super::mapping::Mapping;
use super::stamp::StampId;
use crate::lock::Mutex;
use crate::qos::MemoryCharge;
use alloc::sync::Arc;

/// What one handle and its clones stand for.
pub(super) struct Hold {
    pub(super) mapping: Arc<Mapping>,
    /// The region has been freed through this mapping: there is nothing to unmap.
    pub(super) freed: bool,
    /// What an application is charged for it.
    pub(super) _charge: MemoryCharge,
}

#[derive(Default)]
struct Slot {
    handles: u32,
    hold: Option<Hold>,
}

/// What the handles of a node stand for. A lock each, which is held for a moment.
#[derive(Default)]
pub(crate) struct Holds(Chunks<Mutex<Slot>>);

impl Holds {
    /// There is a first handle of a mapping.
    pub(super) fn open(&self, hold: Hold) {
        if let Some(slot) = self.0.grow(hold.mapping.stamp.id().number()) {
            *slot.lock() = Slot { handles: 1, hold: Some(hold) };
        }
    }

    /// There is one more.
    pub(super) fn more(&self, stamp: StampId) {
        if let Some(slot) = self.0.get(stamp.number()) {
            slot.lock().handles += 1;
        }
    }

    /// There is one less; gives what it stood for if that was the last.
    pub(super) fn fewer(&self, stamp: StampId) -> Option<Hold> {
        let mut slot = self.0.get(stamp.number())?.lock();
        slot.handles -= 1;
        if slot.handles == 0 { slot.hold.take() } else { None }
    }

    /// Does something with what a handle stands for.
    ///
    /// # Panics
    /// If there is no handle.
    pub(super) fn with<R>(&self, stamp: StampId, f: impl FnOnce(&mut Hold) -> R) -> R {
        let slot = self.0.get(stamp.number());
        let mut slot = slot.expect("a handle's slot was made with it").lock();
        f(slot.hold.as_mut().expect("a handle keeps what it stands for"))
    }
}
