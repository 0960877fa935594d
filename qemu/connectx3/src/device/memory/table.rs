//! The memory protection table, and the commands on its entries.
//!
//! Entries are in ICM, where Linux changes them directly when it re-registers a region: it takes the entry
//! back (HW2SW_MPT), writes it, hands it over by its first byte, and flushes the card's copies (SYNC_TPT).

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

/// The maximum number of entries that the card caches.
const REMEMBERED: usize = 1 << 16;

/// The table of regions and windows (MPT).
#[derive(Debug, Default)]
pub(crate) struct Regions {
    /// The ICM address of the first entry.
    base: u64,
    /// The mask of an index.
    mask: u32,
    /// One bit for each entry that the guest has ever handed over. The memory of the others is undefined.
    given: Vec<u64>,
    /// Copies of entries in ICM.
    remembered: HashMap<u32, Entry>,
    generations: Generations,
    /// The account of the cost of lookups, if costs are counted.
    costs: Option<Arc<Costs>>,
}

impl Regions {
    /// Creates a table of `1 << log_entries` entries at ICM address `base`.
    #[must_use]
    pub(crate) fn new(base: u64, log_entries: u8, costs: Option<Arc<Costs>>) -> Self {
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

    /// Starts to count the cost of lookups of entries and pages.
    pub(crate) fn set_costs(&mut self, costs: Arc<Costs>) {
        self.costs = Some(costs);
    }

    /// Counts the lookup of the entry of a key.
    pub(super) fn account(&self, key: u32) {
        if let Some(costs) = &self.costs {
            costs.region(key >> 8 & self.mask);
        }
    }

    /// Counts the lookup of a page table entry, by its byte offset.
    pub(super) fn account_page(&self, mtt: u64) {
        if let Some(costs) = &self.costs {
            costs.page(mtt);
        }
    }

    fn is_given(&self, index: u32) -> bool {
        self.given.get(index as usize / 64).is_some_and(|bits| bits >> (index % 64) & 1 != 0)
    }

    const fn locate(&self, index: u32) -> u64 {
        self.base.wrapping_add(index as u64 * LEN as u64)
    }

    fn read(&self, icm: &Icm, host: &dyn Host, index: u32) -> Result<Entry, IcmFault> {
        if let Some(entry) = self.remembered.get(&index) {
            return Ok(*entry);
        }
        let mut bytes = [0; LEN];
        icm.read(host, self.locate(index), &mut bytes)?;
        Ok(Entry::parse(&bytes))
    }

    fn write(&mut self, icm: &mut Icm, host: &dyn Host, index: u32, entry: Entry) -> Result<(), IcmFault> {
        self.remembered.remove(&index);
        if let Some(costs) = &self.costs {
            costs.region_changed(index);
        }
        icm.write(host, self.locate(index), &entry.bytes())?;
        if entry.owner() != Owner::Software {
            if self.remembered.len() >= REMEMBERED {
                self.remembered.clear();
            }
            self.remembered.insert(index, entry);
        }
        Ok(())
    }

    /// Returns the entry at a key's index, if the card owns it and the key matches except for the variable
    /// bits.
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

    /// Returns the entry of a valid key.
    pub(super) fn good(&self, icm: &Icm, host: &dyn Host, key: u32) -> Result<Entry, Refused> {
        let entry = self.of_key(icm, host, key)?;
        match entry.owner() {
            _ if entry.key() != key => Err(Refused::NoKey(key)),
            Owner::Hardware => Ok(entry),
            Owner::Free | Owner::Software => Err(Refused::Invalid(key)),
        }
    }

    /// Changes the entry whose key was `before`.
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

    /// Counts a window that was bound to a region (`bound`) or unbound from it.
    pub(super) fn count_window(&mut self, icm: &mut Icm, host: &dyn Host, lkey: u32, bound: bool) {
        let Ok(mut region) = self.of_key(icm, host, lkey) else { return };
        if region.is_region() {
            let windows = region.windows();
            region.set_windows(if bound { windows.saturating_add(1) } else { windows.saturating_sub(1) });
            // The preceding read shows that the table's memory is mapped.
            let _ = self.write(icm, host, lkey >> 8 & self.mask, region);
        }
    }

    /// Returns the name of a valid key, and the region's first address.
    pub(super) fn name(&self, key: u32, start: u64) -> (Name, u64) {
        if key == RESERVED_LKEY { (Name(0), 0) } else { self.generations.name(key, start) }
    }

    /// Returns the key of a name, and the region's first address.
    pub(super) fn named(&self, name: Name) -> Option<(u32, u64)> {
        if name == Name(0) { Some((RESERVED_LKEY, 0)) } else { self.generations.key(name) }
    }

    /// SW2HW_MPT: takes over an entry from the guest.
    pub(crate) fn create(
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
            // Table memory that was unmapped and mapped again contains zeros.
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

    /// HW2SW_MPT: returns an entry to the guest, with its last contents.
    pub(crate) fn destroy(&mut self, index: u32, icm: &mut Icm, host: &dyn Host) -> Result<Mailbox, Status> {
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

    /// QUERY_MPT: returns an entry.
    pub(crate) fn query(&self, index: u32, icm: &Icm, host: &dyn Host) -> Result<Mailbox, Status> {
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

    /// SYNC_TPT: discards the copies, so that entries are read from ICM again.
    pub(crate) fn forget_copies(&mut self) {
        self.remembered.clear();
    }
}
