//! Memory regions: the entries of the memory protection table (MPT), and the guest's memory as their keys reach it.

use super::cost::Costs;
use super::hcr::Status;
use super::host::{DmaError, Host};
use super::mailbox::Mailbox;
use super::queue_memory::{MTT_ENTRY, MttTable};
use std::collections::HashMap;
use std::sync::Arc;

/// The key that reaches all memory of the guest for work requests of its kernel (QUERY_DEV_CAP 0x98).
pub const RESERVED_LKEY: u32 = 0x100;
/// Its index, one of those that the firmware keeps for itself.
const RESERVED_INDEX: u32 = 1;

/// What a work request or a peer wants to do with memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Gather from it.
    LocalRead,
    /// Scatter to it.
    LocalWrite,
    /// READ.
    RemoteRead,
    /// WRITE.
    RemoteWrite,
    /// Fetch-and-add, compare-and-swap.
    Atomic,
}

impl Access {
    /// The bit of the entry's first word that gives it.
    const fn bit(self) -> u32 {
        match self {
            Self::LocalRead => 1 << 10,
            Self::LocalWrite => 1 << 11,
            Self::RemoteRead => 1 << 12,
            Self::RemoteWrite => 1 << 13,
            Self::Atomic => 1 << 14,
        }
    }
}

/// Why an access is refused. Nothing was read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// No region has the key.
    #[error("no region has key {0:#x}")]
    NoKey(u32),
    /// The region belongs to another protection domain.
    #[error("key {0:#x} belongs to another protection domain")]
    OtherDomain(u32),
    /// The region does not give the right.
    #[error("key {0:#x} does not give {1:?}")]
    NoRight(u32, Access),
    /// The range goes beyond the region.
    #[error("{1:#x} and {2} bytes go beyond the region of key {0:#x}")]
    OutOfBounds(u32, u64, u64),
    /// The guest has not given the memory to the device.
    #[error(transparent)]
    Dma(#[from] DmaError),
}

/// A region that the card owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    key: u32,
    pd: u32,
    flags: u32,
    start: u64,
    /// Bytes; `None` for all of the address space.
    len: Option<u64>,
    /// Where its pages are, if addresses are not bus addresses.
    pages: Option<Pages>,
    /// May be taken away by LOCAL_INV, and by a peer.
    pub invalidate: Invalidate,
}

/// The pages of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pages {
    mtt: u64,
    log_page: u8,
    /// Bytes of the first page before the region.
    offset: u64,
}

/// Who may take a region's key away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalidate {
    /// LOCAL_INV.
    pub local: bool,
    /// SEND with invalidate.
    pub remote: bool,
}

const PHYSICAL: u32 = 1 << 9;
const FREE: u32 = 0x3;

impl Region {
    /// Reads an entry (Linux `mlx4/mr.c`, iPXE `hermon_setup_mpt`).
    fn parse(entry: &Mailbox) -> Self {
        let flags = entry.u32(0x00);
        let (start, len) = (entry.u64(0x10), entry.u64(0x18));
        let all = len == u64::MAX || (len == 0 && entry.u32(0x28) >> 22 & 1 != 0);
        let domain = entry.u32(0x0c);
        let pages = (flags & PHYSICAL == 0).then(|| {
            let log_page = (entry.u32(0x38) & 0x3f) as u8;
            Pages {
                mtt: entry.u64(0x2c) & !7,
                log_page,
                offset: u64::from(entry.u32(0x3c) & 0x1f_ffff) | start & ((1u64 << log_page.min(63)) - 1),
            }
        });
        Self {
            key: entry.u32(0x08).rotate_left(8),
            pd: domain & 0x1_ffff,
            flags,
            start,
            len: (!all).then_some(len),
            pages,
            invalidate: Invalidate { local: domain >> 25 & 1 != 0, remote: domain >> 24 & 1 != 0 },
        }
    }

    /// Where the byte at `at` is, and how many follow it in one piece.
    fn place(&self, at: u64, keyed: &Keyed<'_>) -> Option<(u64, u64)> {
        let Some(Pages { mtt, log_page, offset }) = self.pages else {
            return Some((at, u64::MAX - at));
        };
        let position = at.checked_sub(self.start)?.checked_add(offset)?;
        let within = position & ((1 << log_page) - 1);
        if let Some(costs) = &keyed.regions.costs {
            costs.page(mtt.wrapping_add((position >> log_page) * MTT_ENTRY));
        }
        let page = keyed.table.page(keyed.host, mtt, position >> log_page)?;
        Some((page.checked_add(within)?, (1 << log_page) - within))
    }
}

/// All regions, by their index in the table.
#[derive(Debug, Default)]
pub struct Regions {
    by_index: HashMap<u32, Region>,
    /// Bits of an index.
    mask: u32,
    /// What looking at them costs, if that is counted.
    costs: Option<Arc<Costs>>,
}

impl Regions {
    /// A table of `1 << log_entries` entries.
    #[must_use]
    pub fn new(log_entries: u8, costs: Option<Arc<Costs>>) -> Self {
        Self { by_index: HashMap::new(), mask: (1u32 << log_entries.min(24)) - 1, costs }
    }

    /// SW2HW_MPT: the guest gives a region.
    pub fn create(&mut self, index: u32, entry: &Mailbox) -> Result<(), Status> {
        let index = index & self.mask;
        let region = Region::parse(entry);
        if region.key >> 8 & self.mask != index
            || region.pages.is_some_and(|p| !(12..=31).contains(&p.log_page))
        {
            return Err(Status::BadParameter);
        }
        if self.by_index.contains_key(&index) {
            return Err(Status::BadResourceState);
        }
        self.changed(index);
        self.by_index.insert(index, region);
        Ok(())
    }

    fn changed(&self, index: u32) {
        if let Some(costs) = &self.costs {
            costs.region_changed(index);
        }
    }

    /// HW2SW_MPT: the guest takes a region back.
    pub fn destroy(&mut self, index: u32) -> Result<(), Status> {
        self.by_index.remove(&(index & self.mask)).map(drop).ok_or(Status::BadResourceState)
    }

    /// The region with a key, if it is one that may be used.
    fn with_key(&self, key: u32) -> Result<&Region, Refused> {
        let region = self.by_index.get(&(key >> 8 & self.mask)).ok_or(Refused::NoKey(key))?;
        if region.key != key || region.flags >> 28 == FREE {
            return Err(Refused::NoKey(key));
        }
        Ok(region)
    }

    /// The index and first address of the region with a key.
    pub fn origin(&self, key: u32) -> Result<(u32, u64), Refused> {
        if key == RESERVED_LKEY {
            return Ok((RESERVED_INDEX, 0));
        }
        Ok((key >> 8 & self.mask, self.with_key(key)?.start))
    }

    /// The key and first address of the region with an index.
    #[must_use]
    pub fn by_index(&self, index: u32) -> Option<(u32, u64)> {
        if index == RESERVED_INDEX {
            return Some((RESERVED_LKEY, 0));
        }
        let region = self.by_index.get(&index)?;
        (region.flags >> 28 != FREE).then_some((region.key, region.start))
    }

    /// Whether a key may be taken away.
    pub fn may_invalidate(&self, key: u32, pd: u32, remote: bool) -> Result<(), Refused> {
        let found = self.with_key(key)?;
        if found.pd != pd {
            return Err(Refused::OtherDomain(key));
        }
        let allowed = if remote { found.invalidate.remote } else { found.invalidate.local };
        if !allowed {
            return Err(Refused::NoRight(key, Access::LocalWrite));
        }
        Ok(())
    }

    /// Takes a key away.
    pub fn invalidate(&mut self, key: u32, pd: u32, remote: bool) -> Result<(), Refused> {
        self.may_invalidate(key, pd, remote)?;
        if let Some(region) = self.by_index.get_mut(&(key >> 8 & self.mask)) {
            region.flags = region.flags & 0x0fff_ffff | FREE << 28;
        }
        Ok(())
    }
}

/// The guest's memory by keys.
#[derive(Clone, Copy)]
pub struct Keyed<'a> {
    /// The regions.
    pub regions: &'a Regions,
    /// Their pages.
    pub table: MttTable<'a>,
    /// The machine.
    pub host: &'a dyn Host,
}

impl Keyed<'_> {
    /// Whether a key gives `access` over `len` bytes from `at` in protection domain `pd`.
    pub fn check(&self, key: u32, pd: u32, at: u64, len: u64, access: Access) -> Result<(), Refused> {
        if key == RESERVED_LKEY && matches!(access, Access::LocalRead | Access::LocalWrite) {
            return Ok(());
        }
        let region = self.regions.with_key(key)?;
        if let Some(costs) = &self.regions.costs {
            costs.region(key >> 8 & self.regions.mask);
        }
        if region.pd != pd {
            return Err(Refused::OtherDomain(key));
        }
        if access != Access::LocalRead && region.flags & access.bit() == 0 {
            return Err(Refused::NoRight(key, access));
        }
        let out_of_bounds = Refused::OutOfBounds(key, at, len);
        let end = at.checked_add(len).ok_or(out_of_bounds)?;
        if let Some(bytes) = region.len {
            let limit = region.start.saturating_add(bytes);
            if at < region.start || end > limit {
                return Err(out_of_bounds);
            }
        }
        Ok(())
    }

    /// Calls `each` for the pieces of a range: bus address, offset in the range, bytes.
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
        let region = self.regions.with_key(key)?;
        let out_of_bounds = Refused::OutOfBounds(key, at, len as u64);
        let mut done = 0;
        while done < len {
            let here = at.checked_add(done as u64).ok_or(out_of_bounds)?;
            let (bus, rest) = region.place(here, self).ok_or(out_of_bounds)?;
            let n = usize::try_from(rest).unwrap_or(usize::MAX).min(len - done);
            each(bus, done, n)?;
            done += n;
        }
        Ok(())
    }

    /// Copies from memory that was checked.
    pub fn read(&self, key: u32, at: u64, buf: &mut [u8]) -> Result<(), Refused> {
        self.pieces(key, at, buf.len(), |bus, from, n| {
            buf.get_mut(from..from + n).map_or(Ok(()), |to| self.host.read(bus, to))
        })
    }

    /// Copies to memory that was checked.
    pub fn write(&self, key: u32, at: u64, data: &[u8]) -> Result<(), Refused> {
        self.pieces(key, at, data.len(), |bus, from, n| {
            data.get(from..from + n).map_or(Ok(()), |from| self.host.write(bus, from))
        })
    }

    /// The bus address of an aligned word that was checked.
    pub fn word(&self, key: u32, at: u64) -> Result<u64, Refused> {
        let mut place = None;
        self.pieces(key, at, 8, |bus, from, n| {
            if from == 0 && n == 8 {
                place = Some(bus);
            }
            Ok(())
        })?;
        place.ok_or(Refused::OutOfBounds(key, at, 8))
    }
}
