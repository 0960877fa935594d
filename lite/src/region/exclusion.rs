//! The order of concurrent requests at the owner of a region: changes wait for one another, and a handover
//! waits for the requests about the region's names. A new owner adopts a region once.

use super::owner::{RegionOwner, RegionTable};
use crate::Error;
use crate::base::member::MemberId;
use alloc::sync::Arc;

/// A change of a region in progress. The next one begins when this is dropped.
pub(super) struct Changing<'a> {
    pub(super) table: &'a RegionTable,
    pub(super) region: u64,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(r) = self.table.table.lock().regions.get_mut(&self.region) {
            r.changing = false;
            r.moving = false;
            r.is_leaving = false;
        }
        self.table.changed.wake_all();
    }
}

/// A request about the names of a region; dropping this ends it.
pub(super) struct Naming<'a> {
    table: &'a RegionTable,
    region: u64,
}

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        if let Some(r) = self.table.table.lock().regions.get_mut(&self.region) {
            r.naming -= 1;
        }
        self.table.changed.wake_all();
    }
}

/// The adoption of a region in progress; dropping this ends it.
pub(super) struct Adopting {
    owner: Arc<RegionOwner>,
    /// The former owner, and the key of the region.
    which: (MemberId, u64),
}

impl Drop for Adopting {
    fn drop(&mut self) {
        self.owner.regions.adopting.lock().remove(&self.which);
    }
}

impl Adopting {
    /// Begins to adopt the region with `key` of another owner. Returns `None` if that is in progress.
    pub(super) fn begin(owner: &Arc<RegionOwner>, former: MemberId, key: u64) -> Option<Self> {
        let which = (former, key);
        let is_first = owner.regions.adopting.lock().insert(which);
        is_first.then(|| Self { owner: owner.clone(), which })
    }
}

impl RegionTable {
    /// Begins a change if none is in progress. Returns `Err` if the region has been freed.
    pub(super) fn begin_change(&self, region: u64) -> Option<Result<Changing<'_>, Error>> {
        let mut table = self.table.lock();
        let Some(r) = table.live(region) else { return Some(Err(Error::Freed)) };
        if r.changing {
            return None;
        }
        r.changing = true;
        Some(Ok(Changing { table: self, region }))
    }

    /// Begins a request about the names of a region, unless the region is being handed over. Returns `Err` if
    /// the region is not here.
    pub(super) fn begin_naming(&self, region: u64) -> Option<Result<Naming<'_>, Error>> {
        let mut table = self.table.lock();
        let Some(r) = table.live(region) else { return Some(Err(Error::Freed)) };
        if r.is_leaving {
            return None;
        }
        r.naming += 1;
        Some(Ok(Naming { table: self, region }))
    }

    /// Lets no request about the names of a region begin, and returns `true` once none is in progress. The
    /// end of the present change allows them again.
    pub(super) fn end_naming(&self, region: u64) -> bool {
        self.table.lock().live(region).is_none_or(|r| {
            r.is_leaving = true;
            r.naming == 0
        })
    }

    /// Returns true if no change of a region is in progress.
    pub(super) fn is_at_rest(&self, region: u64) -> bool {
        self.table.lock().regions.get(&region).is_none_or(|r| !r.changing)
    }
}
