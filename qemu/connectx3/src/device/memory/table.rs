//! The memory protection table: what commands do with its entries.
//!
//! Entries lie in ICM, where Linux changes them behind the card's back when it registers a region anew: it takes the entry
//! back (HW2SW_MPT), writes it, gives it by its first byte, and flushes what the card may remember (SYNC_TPT).

use super::entry::{Entry, LEN, Owner};
use super::generation::{Generations, Name};
use super::{RESERVED_LKEY, Refused};
use crate::device::cost::Costs;
use crate::device::hcr::Status;
use crate::device::host::Host;
use crate::device::icm::{Icm, IcmFault};
use crate::device::mailbox::Mailbox;
use std::collections::HashMap;
use std::sync::Arc;

/// Entries that the card remembers.
const REMEMBERED: usize = 1 << 16;

/// The table.
#[derive(Debug, Default)]
pub struct Regions {
    /// ICM address of the first entry.
    base: u64,
    /// Bits of an index.
    mask: u32,
    /// A bit for each entry that the guest has ever given: what lies in the others is rubbish.
    given: Vec<u64>,
    /// Copies of entries as they lie in ICM.
    remembered: HashMap<u32, Entry>,
    generations: Generations,
    /// What looking at entries and pages costs, if that is counted.
    costs: Option<Arc<Costs>>,
}

impl Regions {
    /// A table of `1 << log_entries` entries from ICM address `base` on.
    #[must_use]
    pub fn new(base: u64, log_entries: u8, costs: Option<Arc<Costs>>) -> Self {
        let entries = 1u32 << log_entries.min(24);
        Self {
            base,
            mask: entries - 1,
            given: vec![0; entries.div_ceil(64) as usize],
            remembered: HashMap::new(),
            generations: Generations::default(),
            costs,
        }
    }

    /// Counts what looking at entries and pages costs from now on.
    pub fn set_costs(&mut self, costs: Arc<Costs>) {
        self.costs = Some(costs);
    }

    /// What it costs to look at the entry with a key, if that is counted.
    pub(super) fn account(&self, key: u32) {
        if let Some(costs) = &self.costs {
            costs.region(key >> 8 & self.mask);
        }
    }

    /// What it costs to look at an entry of the page table, by its byte offset.
    pub(super) fn account_page(&self, mtt: u64) {
        if let Some(costs) = &self.costs {
            costs.page(mtt);
        }
    }

    fn is_given(&self, index: u32) -> bool {
        self.given.get(index as usize / 64).is_some_and(|bits| bits >> (index % 64) & 1 != 0)
    }

    const fn place(&self, index: u32) -> u64 {
        self.base.wrapping_add(index as u64 * LEN as u64)
    }

    fn read(&self, icm: &Icm, host: &dyn Host, index: u32) -> Result<Entry, IcmFault> {
        if let Some(entry) = self.remembered.get(&index) {
            return Ok(*entry);
        }
        let mut bytes = [0; LEN];
        icm.read(host, self.place(index), &mut bytes)?;
        Ok(Entry::parse(&bytes))
    }

    fn write(&mut self, icm: &mut Icm, host: &dyn Host, index: u32, entry: Entry) -> Result<(), IcmFault> {
        self.remembered.remove(&index);
        if let Some(costs) = &self.costs {
            costs.region_changed(index);
        }
        icm.write(host, self.place(index), &entry.bytes())?;
        if entry.owner() != Owner::Software {
            if self.remembered.len() >= REMEMBERED {
                self.remembered.clear();
            }
            self.remembered.insert(index, entry);
        }
        Ok(())
    }

    /// The entry with a key's index, if it is the card's and its key is of that entry but for the variable bits.
    pub(super) fn of_key(&self, icm: &Icm, host: &dyn Host, key: u32) -> Result<Entry, Refused> {
        let index = key >> 8 & self.mask;
        if !self.is_given(index) {
            return Err(Refused::NoKey(key));
        }
        let entry = self.read(icm, host, index)?;
        if entry.owner() == Owner::Software || entry.key() >> 8 != key >> 8 {
            return Err(Refused::NoKey(key));
        }
        Ok(entry)
    }

    /// The entry with a key that is good.
    pub(super) fn good(&self, icm: &Icm, host: &dyn Host, key: u32) -> Result<Entry, Refused> {
        let entry = self.of_key(icm, host, key)?;
        match entry.owner() {
            _ if entry.key() != key => Err(Refused::NoKey(key)),
            Owner::Hardware => Ok(entry),
            Owner::Free | Owner::Software => Err(Refused::Invalid(key)),
        }
    }

    /// Changes the entry that had the key `before`.
    pub(super) fn change(
        &mut self,
        icm: &mut Icm,
        host: &dyn Host,
        before: u32,
        entry: Entry,
    ) -> Result<(), Refused> {
        self.generations.end(before);
        Ok(self.write(icm, host, before >> 8 & self.mask, entry)?)
    }

    /// Counts a window that is bound to a region, or no longer is.
    pub(super) fn count_window(&mut self, icm: &mut Icm, host: &dyn Host, lkey: u32, bound: bool) {
        let Ok(mut region) = self.of_key(icm, host, lkey) else { return };
        if region.is_region() {
            let windows = region.windows();
            region.set_windows(if bound { windows.saturating_add(1) } else { windows.saturating_sub(1) });
            // The table's memory was there a moment ago.
            let _ = self.write(icm, host, lkey >> 8 & self.mask, region);
        }
    }

    /// A name for a good key while its life lasts, and the region's first address.
    pub(super) fn name(&self, key: u32, start: u64) -> (Name, u64) {
        if key == RESERVED_LKEY { (Name(0), 0) } else { self.generations.name(key, start) }
    }

    /// The key that has a name, and the region's first address.
    pub(super) fn named(&self, name: Name) -> Option<(u32, u64)> {
        if name == Name(0) { Some((RESERVED_LKEY, 0)) } else { self.generations.key(name) }
    }

    /// SW2HW_MPT: the guest gives an entry.
    pub fn create(
        &mut self,
        index: u32,
        mailbox: &Mailbox,
        icm: &mut Icm,
        host: &dyn Host,
    ) -> Result<(), Status> {
        let index = index & self.mask;
        let bytes = mailbox.bytes().first_chunk().ok_or(Status::Internal)?;
        let mut entry = Entry::parse(bytes);
        let paged = entry.is_region() && !entry.is_physical() && entry.owner() != Owner::Free;
        if entry.key() >> 8 & self.mask != index || (paged && !(12..=31).contains(&entry.log_page())) {
            return Err(Status::BadParameter);
        }
        if self.is_given(index) {
            let there = self.read(icm, host, index).map_err(|_| Status::IcmError)?;
            // Memory of the table that was taken away and given anew holds zeros.
            let blank = there == Entry::default();
            if !blank && there.owner() != Owner::Software && there.key() >> 8 & self.mask == index {
                return Err(Status::BadResourceState);
            }
        }
        if entry.owner() == Owner::Software {
            entry.set_owner(Owner::Hardware);
        }
        if entry.is_region() {
            entry.set_windows(0);
        } else {
            entry.set_window(0, 0);
            entry.set_window_qpn(0);
        }
        self.generations.end(entry.key());
        self.write(icm, host, index, entry).map_err(|_| Status::IcmError)?;
        if let Some(bits) = self.given.get_mut(index as usize / 64) {
            *bits |= 1 << (index % 64);
        }
        Ok(())
    }

    /// HW2SW_MPT: the guest takes an entry back; gives it as it was.
    pub fn destroy(&mut self, index: u32, icm: &mut Icm, host: &dyn Host) -> Result<Mailbox, Status> {
        let index = index & self.mask;
        let mut entry = self.owned(index, icm, host)?;
        if entry.is_region() && entry.windows() > 0 {
            return Err(Status::RegionBound);
        }
        let mut out = Mailbox::default();
        out.put(0, &entry.bytes());
        if !entry.is_region() && entry.window_lkey() != 0 {
            self.count_window(icm, host, entry.window_lkey(), false);
        }
        self.generations.end(entry.key());
        entry.set_owner(Owner::Software);
        self.write(icm, host, index, entry).map_err(|_| Status::IcmError)?;
        Ok(out)
    }

    /// QUERY_MPT: an entry.
    pub fn query(&self, index: u32, icm: &Icm, host: &dyn Host) -> Result<Mailbox, Status> {
        let index = index & self.mask;
        if !self.is_given(index) {
            return Err(Status::BadIndex);
        }
        let mut out = Mailbox::default();
        out.put(0, &self.read(icm, host, index).map_err(|_| Status::IcmError)?.bytes());
        Ok(out)
    }

    fn owned(&self, index: u32, icm: &Icm, host: &dyn Host) -> Result<Entry, Status> {
        if !self.is_given(index) {
            return Err(Status::BadResourceState);
        }
        let entry = self.read(icm, host, index).map_err(|_| Status::IcmError)?;
        if entry.owner() == Owner::Software || entry.key() >> 8 & self.mask != index {
            return Err(Status::BadResourceState);
        }
        Ok(entry)
    }

    /// SYNC_TPT: entries are read from ICM again.
    pub fn forget_copies(&mut self) {
        self.remembered.clear();
    }
}
