//! Work requests that change keys: FAST_REG, LOCAL_INV and the bind of a window; also the SEND of a peer that
//! invalidates a key.

use super::entry::{Entry, Owner};
use super::{Access, Domain, Refused, Regions};
use crate::device::host::Host;
use crate::device::icm::Icm;
use crate::device::queue_memory::MTT_ENTRY;

/// The maximum number of pages of a FAST_REG.
const MAX_PAGES: u64 = 512;

/// FAST_REG: assigns pages, a range, rights and a key to a free region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FastRegister {
    /// The new key.
    pub key: u32,
    /// The rights of the region.
    pub rights: Rights,
    /// The bus address of the list of pages. Each has the present bit of an MTT entry.
    pub pages: u64,
    /// The first address of the region.
    pub start: u64,
    /// The length of the region, in bytes.
    pub len: u64,
    /// The offset of the region in its first page, in bytes.
    pub first_byte: u32,
    /// log2 of the page size in bytes.
    pub log_page: u8,
}

/// The bind of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bind {
    /// The new key of the window.
    pub key: u32,
    /// The key of the region.
    pub lkey: u32,
    /// The rights of the window; all are remote rights.
    pub rights: Rights,
    /// The first address of the window, in the region.
    pub start: u64,
    /// The length in bytes; 0 unbinds a window of type 1.
    pub len: u64,
    /// True for a window of type 2.
    pub type2: bool,
    /// True if the window's addresses begin at 0.
    pub zero_based: bool,
}

/// Rights, as bits of [`Access`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Rights(u32);

impl Rights {
    /// Creates a set of rights.
    #[must_use]
    pub(crate) fn new(rights: impl IntoIterator<Item = Access>) -> Self {
        Self(rights.into_iter().fold(0, |bits, right| bits | right.bit()))
    }

    fn list(self) -> Vec<Access> {
        [Access::LocalRead, Access::LocalWrite, Access::RemoteRead, Access::RemoteWrite, Access::Atomic]
            .into_iter()
            .filter(|right| self.0 & right.bit() != 0)
            .collect()
    }

    const fn has(self, right: Access) -> bool {
        self.0 & right.bit() != 0
    }
}

/// Work on the card's own tables, executed in order with a queue pair's other work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LocalWork {
    /// No operation.
    Nop,
    /// FAST_REG.
    FastRegister(FastRegister),
    /// LOCAL_INV of a key.
    Invalidate(u32),
    /// A BIND_MW request.
    Bind(Bind),
}

impl Regions {
    /// Executes a work request that changes keys. `mtt_base` is the ICM address of the page table.
    pub(crate) fn run(
        &mut self,
        work: &LocalWork,
        who: Domain,
        mtt_base: u64,
        icm: &mut Icm,
        host: &dyn Host,
    ) -> Result<(), Refused> {
        match work {
            LocalWork::Nop => Ok(()),
            LocalWork::FastRegister(work) => self.fast_register(work, who, mtt_base, icm, host),
            LocalWork::Invalidate(key) => self.invalidate(*key, who, false, icm, host),
            LocalWork::Bind(work) => self.bind(work, who, icm, host),
        }
    }

    fn fast_register(
        &mut self,
        work: &FastRegister,
        who: Domain,
        mtt_base: u64,
        icm: &mut Icm,
        host: &dyn Host,
    ) -> Result<(), Refused> {
        let key = work.key;
        let mut entry = self.of_key(icm, host, key)?;
        if !entry.is_region() {
            return Err(Refused::WrongKind(key));
        }
        if entry.pd() != who.pd {
            return Err(Refused::OtherDomain(key));
        }
        if !entry.fast_register() || entry.is_physical() {
            return Err(Refused::NotAllowed(key, "FAST_REG"));
        }
        if entry.owner() != Owner::Free {
            return Err(Refused::NotAllowed(key, "FAST_REG, because it is not free"));
        }
        if !(12..=31).contains(&work.log_page) {
            return Err(Refused::Pages(key));
        }
        let before = entry.key();
        entry.set_range(work.start, work.len);
        entry.set_pages(work.log_page, work.first_byte);
        let bytes = entry.first_byte().checked_add(work.len).ok_or(Refused::Pages(key))?;
        let count = bytes.div_ceil(1 << work.log_page);
        if count > u64::from(entry.mtt_count()).min(MAX_PAGES) || work.start.checked_add(work.len).is_none() {
            return Err(Refused::Pages(key));
        }
        let list = |at: u64| work.pages.checked_add(at).ok_or(Refused::Pages(key));
        let pages = (0..count)
            .map(|page| {
                let mut entry = [0; MTT_ENTRY as usize];
                host.read(list(page * MTT_ENTRY)?, &mut entry)?;
                Ok(entry)
            })
            .collect::<Result<Vec<_>, Refused>>()?;
        let mtt = mtt_base.checked_add(entry.mtt()).ok_or(Refused::Pages(key))?;
        for (place, page) in (0u64..).zip(pages) {
            let at = mtt.checked_add(place * MTT_ENTRY).ok_or(Refused::Pages(key))?;
            icm.write(host, at, &page)?;
        }
        entry.set_rights(&work.rights.list());
        entry.set_key(key);
        entry.set_owner(Owner::Hardware);
        self.change(icm, host, before, entry)
    }

    /// Invalidates a key, for LOCAL_INV or for a peer.
    pub(crate) fn invalidate(
        &mut self,
        key: u32,
        who: Domain,
        remote: bool,
        icm: &mut Icm,
        host: &dyn Host,
    ) -> Result<(), Refused> {
        let mut entry = self.good(icm, host, key)?;
        may_invalidate(&entry, key, who, remote)?;
        if !entry.is_region() {
            self.count_window(icm, host, entry.window_lkey(), false);
            entry.set_window(0, 0);
            entry.set_window_qpn(0);
        }
        entry.set_owner(Owner::Free);
        self.change(icm, host, key, entry)
    }

    fn bind(&mut self, work: &Bind, who: Domain, icm: &mut Icm, host: &dyn Host) -> Result<(), Refused> {
        let key = work.key;
        let mut window = self.of_key(icm, host, key)?;
        if window.is_region() || window.is_type2() != work.type2 {
            return Err(Refused::WrongKind(key));
        }
        if window.pd() != who.pd {
            return Err(Refused::OtherDomain(key));
        }
        if work.type2 && window.owner() != Owner::Free {
            return Err(Refused::NotAllowed(key, "a bind of a bound window of type 2"));
        }
        if work.type2 && work.len == 0 {
            return Err(Refused::NotAllowed(key, "a window of type 2 of zero length"));
        }
        let (before, bound_to) = (window.key(), window.window_lkey());
        if work.len == 0 {
            window.set_window(0, 0);
            window.set_range(0, 0);
            window.set_rights(&[]);
        } else {
            self.check_bind(work, who, icm, host)?;
            window.set_window(work.lkey, work.start);
            window.set_range(if work.zero_based { 0 } else { work.start }, work.len);
            window.set_rights(&work.rights.list());
        }
        if work.type2 {
            window.set_window_qpn(who.qpn);
        }
        window.set_key(key);
        window.set_owner(Owner::Hardware);
        self.change(icm, host, before, window)?;
        if bound_to != 0 {
            self.count_window(icm, host, bound_to, false);
        }
        if work.len > 0 {
            self.count_window(icm, host, work.lkey, true);
        }
        Ok(())
    }

    /// Checks that the region allows the bind of the window.
    fn check_bind(&self, work: &Bind, who: Domain, icm: &Icm, host: &dyn Host) -> Result<(), Refused> {
        let region = self.good(icm, host, work.lkey)?;
        if !region.is_region() {
            return Err(Refused::WrongKind(work.lkey));
        }
        if region.pd() != who.pd {
            return Err(Refused::OtherDomain(work.lkey));
        }
        if !region.may_bind() {
            return Err(Refused::NotAllowed(work.lkey, "windows"));
        }
        let writes = work.rights.has(Access::RemoteWrite) || work.rights.has(Access::Atomic);
        if writes && !region.gives(Access::LocalWrite) {
            return Err(Refused::NoRight(work.lkey, Access::LocalWrite));
        }
        if !region.covers(work.start, work.len) {
            return Err(Refused::OutOfBounds(work.lkey, work.start, work.len));
        }
        Ok(())
    }
}

/// Checks that a valid key may be invalidated.
pub(super) fn may_invalidate(entry: &Entry, key: u32, who: Domain, remote: bool) -> Result<(), Refused> {
    let type2 = !entry.is_region() && entry.is_type2();
    let same = if type2 { entry.window_qpn() == who.qpn } else { entry.pd() == who.pd };
    if !same {
        return Err(Refused::OtherDomain(key));
    }
    let allowed = if remote { entry.remote_invalidate() } else { entry.local_invalidate() };
    if !allowed || !(entry.is_region() || type2) {
        return Err(Refused::NotAllowed(key, "invalidation"));
    }
    if entry.is_region() && entry.windows() > 0 {
        return Err(Refused::Bound(key));
    }
    Ok(())
}
