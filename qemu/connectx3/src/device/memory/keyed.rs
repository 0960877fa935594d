//! The guest's memory, addressed by keys.

use super::entry::Entry;
use super::{Access, Domain, RESERVED_LKEY, Refused, Regions};
use crate::device::host::{DmaError, Host};
use crate::device::queue_memory::{MTT_ENTRY, MttTable};

/// The guest's memory, addressed by keys.
#[derive(Clone, Copy)]
pub(crate) struct Keyed<'a> {
    /// The regions and windows of the card.
    pub regions: &'a Regions,
    /// The page table of the regions.
    pub table: MttTable<'a>,
    /// The machine.
    pub host: &'a dyn Host,
}

/// The region behind a valid key; for a window, the region to which it is bound.
struct Target {
    region: Entry,
    /// The value that is added to an address to obtain the address in the region.
    shift: u64,
}

impl Keyed<'_> {
    fn good(&self, key: u32) -> Result<Entry, Refused> {
        self.regions.good(self.table.icm, self.host, key)
    }

    fn target(&self, key: u32) -> Result<Target, Refused> {
        let entry = self.good(key)?;
        if entry.is_region() {
            return Ok(Target { region: entry, shift: 0 });
        }
        let region = self.good(entry.window_lkey())?;
        if !region.is_region() {
            return Err(Refused::WrongKind(key));
        }
        Ok(Target { region, shift: entry.window_base().wrapping_sub(entry.start()) })
    }

    /// Checks that a key grants `access` to `len` bytes at `at` to a queue pair or its peer.
    pub(crate) fn check(
        &self,
        key: u32,
        who: Domain,
        at: u64,
        len: u64,
        access: Access,
    ) -> Result<(), Refused> {
        if key != RESERVED_LKEY {
            self.regions.account(key);
        }
        self.check_again(key, who, at, len, access)
    }

    /// Checks a part of a range that was already checked, because the key may have changed since.
    pub(crate) fn check_again(
        &self,
        key: u32,
        who: Domain,
        at: u64,
        len: u64,
        access: Access,
    ) -> Result<(), Refused> {
        if key == RESERVED_LKEY && access.is_local() {
            let refused = Err(Refused::NotAllowed(key, "the reserved key"));
            return if who.reserved_lkey { Ok(()) } else { refused };
        }
        let entry = self.good(key)?;
        let other_domain = if entry.is_region() || !entry.is_type2() {
            entry.pd() != who.pd
        } else {
            entry.window_qpn() != who.qpn
        };
        if other_domain {
            return Err(Refused::OtherDomain(key));
        }
        if !entry.is_region() && access.is_local() {
            return Err(Refused::WrongKind(key));
        }
        if !entry.gives(access) {
            return Err(Refused::NoRight(key, access));
        }
        if !entry.covers(at, len) {
            return Err(Refused::OutOfBounds(key, at, len));
        }
        if !entry.is_region() {
            self.target(key)?;
        }
        Ok(())
    }

    /// Returns the first address of the region of a valid key.
    pub(super) fn start(&self, key: u32) -> Result<u64, Refused> {
        if key == RESERVED_LKEY { Ok(0) } else { Ok(self.good(key)?.start()) }
    }

    /// Returns the bus address of the byte at `at` of a region, and the number of contiguous bytes from
    /// there.
    fn locate(&self, region: &Entry, at: u64) -> Option<(u64, u64)> {
        if region.is_physical() {
            return Some((at, u64::MAX - at));
        }
        let log_page = region.log_page();
        if !(12..=31).contains(&log_page) {
            return None;
        }
        let position = at.checked_sub(region.start())?.checked_add(region.first_byte())?;
        let within = position & ((1 << log_page) - 1);
        self.regions.account_page(region.mtt().wrapping_add((position >> log_page) * MTT_ENTRY));
        let page = self.table.page(self.host, region.mtt(), position >> log_page)?;
        Some((page.checked_add(within)?, (1 << log_page) - within))
    }

    /// Calls `each` for the contiguous pieces of a range, with bus address, offset in the range, and length
    /// in bytes.
    fn pieces(
        &self,
        key: u32,
        at: u64,
        len: usize,
        mut each: impl FnMut(u64, usize, usize) -> Result<(), DmaError>,
    ) -> Result<(), Refused> {
        if key == RESERVED_LKEY {
            return Ok(each(at, 0, len)?);
        }
        let Target { region, shift } = self.target(key)?;
        let out_of_bounds = Refused::OutOfBounds(key, at, len as u64);
        let at = at.wrapping_add(shift);
        let mut done = 0;
        while done < len {
            let here = at.checked_add(done as u64).ok_or(out_of_bounds)?;
            let (bus, rest) = self.locate(&region, here).ok_or(out_of_bounds)?;
            let n = usize::try_from(rest).unwrap_or(usize::MAX).min(len - done);
            if n == 0 {
                return Err(out_of_bounds);
            }
            each(bus, done, n)?;
            done += n;
        }
        Ok(())
    }

    /// Copies from memory that was checked.
    pub(crate) fn read(&self, key: u32, at: u64, buf: &mut [u8]) -> Result<(), Refused> {
        self.pieces(key, at, buf.len(), |bus, from, n| {
            buf.get_mut(from..from + n).map_or(Ok(()), |to| self.host.read(bus, to))
        })
    }

    /// Copies to memory that was checked.
    pub(crate) fn write(&self, key: u32, at: u64, data: &[u8]) -> Result<(), Refused> {
        self.pieces(key, at, data.len(), |bus, from, n| {
            data.get(from..from + n).map_or(Ok(()), |from| self.host.write(bus, from))
        })
    }

    /// Returns the bus address of an aligned word that was checked.
    pub(crate) fn word(&self, key: u32, at: u64) -> Result<u64, Refused> {
        let mut place = None;
        self.pieces(key, at, 8, |bus, from, n| {
            if from == 0 && n == 8 {
                place = Some(bus);
            }
            Ok(())
        })?;
        place.ok_or(Refused::OutOfBounds(key, at, 8))
    }

    /// Checks that a peer's SEND may invalidate a key.
    pub(crate) fn may_invalidate(&self, key: u32, who: Domain) -> Result<(), Refused> {
        let entry = self.good(key)?;
        super::local::may_invalidate(&entry, key, who, true)
    }
}
