//! An entry of the memory protection table (dMPT): a region or a window, in its ICM layout (Linux
//! `mlx4/mlx4.h` `mlx4_mpt_entry`, illumos `hermon_hw_dmpt_s`).

use super::Access;

/// The length of an entry, in bytes.
pub(super) const LEN: usize = 64;

/// Indices of an entry's 32-bit words.
mod word {
    use crate::device::layout::mpt;

    pub(super) const FLAGS: usize = mpt::FLAGS.word() / 4;
    pub(super) const QPN: usize = mpt::QPN.word() / 4;
    pub(super) const KEY: usize = mpt::KEY.word() / 4;
    pub(super) const PD: usize = mpt::PD.word() / 4;
    pub(super) const START: usize = mpt::START_HIGH.word() / 4;
    pub(super) const LEN: usize = mpt::LENGTH_HIGH.word() / 4;
    pub(super) const LKEY: usize = mpt::LKEY.word() / 4;
    pub(super) const WINDOWS: usize = mpt::WINDOWS.word() / 4;
    pub(super) const LEN64: usize = mpt::LENGTH_FLAGS.word() / 4;
    pub(super) const MTT: usize = mpt::MTT_HIGH.word() / 4;
    pub(super) const MTT_COUNT: usize = mpt::MTT_SIZE.word() / 4;
    pub(super) const LOG_PAGE: usize = mpt::LOG_PAGE.word() / 4;
    pub(super) const FIRST_BYTE: usize = mpt::FIRST_BYTE.word() / 4;
}

/// Bits of the first word.
mod flag {
    pub(super) const REGION: u32 = 1 << 8;
    pub(super) const PHYSICAL: u32 = 1 << 9;
    pub(super) const BIND: u32 = 1 << 15;
    /// The mask of all rights.
    pub(super) const RIGHTS: u32 = 0x1f << 10;
}

/// The owner of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// The card owns the entry, and the key is valid.
    Hardware,
    /// The card owns the entry, but the key is invalidated or not yet assigned. FAST_REG and the bind of a
    /// type 2 window make it valid.
    Free,
    /// The guest owns the entry.
    Software,
}

/// An entry. Any bytes are accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Entry([u32; LEN / 4]);

impl Entry {
    /// Parses an entry.
    #[must_use]
    pub(super) fn parse(bytes: &[u8; LEN]) -> Self {
        let mut words = [0; LEN / 4];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_be_bytes(*bytes);
        }
        Self(words)
    }

    /// Returns the entry's bytes.
    #[must_use]
    pub(super) fn bytes(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        for (word, place) in self.0.iter().zip(out.as_chunks_mut::<4>().0) {
            *place = word.to_be_bytes();
        }
        out
    }

    const fn double(&self, first: usize) -> u64 {
        (self.0[first] as u64) << 32 | self.0[first + 1] as u64
    }

    const fn put_double(&mut self, first: usize, value: u64) {
        self.0[first] = (value >> 32) as u32;
        self.0[first + 1] = value as u32;
    }

    /// Returns the entry's owner.
    #[must_use]
    pub(super) const fn owner(&self) -> Owner {
        match self.0[word::FLAGS] >> 28 {
            0xf => Owner::Software,
            0x3 => Owner::Free,
            _ => Owner::Hardware,
        }
    }
    /// Sets the entry's owner.
    pub(super) const fn set_owner(&mut self, owner: Owner) {
        let code = match owner {
            Owner::Hardware => 0x0,
            Owner::Free => 0x3,
            Owner::Software => 0xf,
        };
        self.0[word::FLAGS] = self.0[word::FLAGS] & 0x0fff_ffff | code << 28;
    }
    /// Returns whether the entry is a region; otherwise it is a window.
    #[must_use]
    pub(super) const fn is_region(&self) -> bool {
        self.0[word::FLAGS] & flag::REGION != 0
    }
    /// Returns whether the addresses of the region are bus addresses.
    #[must_use]
    pub(super) const fn is_physical(&self) -> bool {
        self.0[word::FLAGS] & flag::PHYSICAL != 0
    }
    /// Returns whether windows may be bound to the region.
    #[must_use]
    pub(super) const fn may_bind(&self) -> bool {
        self.0[word::FLAGS] & flag::BIND != 0
    }
    /// Returns whether the entry grants a right.
    #[must_use]
    pub(super) const fn gives(&self, access: Access) -> bool {
        self.0[word::FLAGS] & access.bit() != 0
    }
    /// Sets the granted rights.
    pub(super) fn set_rights(&mut self, rights: &[Access]) {
        let bits = rights.iter().fold(0, |bits, right| bits | right.bit());
        self.0[word::FLAGS] = self.0[word::FLAGS] & !flag::RIGHTS | bits;
    }

    /// Returns whether the entry is a window of type 2, which belongs to one queue pair.
    #[must_use]
    pub(super) const fn is_type2(&self) -> bool {
        self.0[word::QPN] & 1 << 7 != 0
    }
    /// Returns the queue pair to which a window of type 2 is bound. The word of the queue pair number also
    /// holds the type 2 flag, so the number is kept in the word that counts a region's windows.
    #[must_use]
    pub(super) const fn window_qpn(&self) -> u32 {
        self.0[word::WINDOWS]
    }
    /// Sets the queue pair to which a window of type 2 is bound.
    pub(super) const fn set_window_qpn(&mut self, qpn: u32) {
        self.0[word::WINDOWS] = qpn;
    }

    /// Returns the key: the index in the table and, in the low byte, the variable bits.
    #[must_use]
    pub(super) const fn key(&self) -> u32 {
        self.0[word::KEY].rotate_left(8)
    }
    /// Sets the key.
    pub(super) const fn set_key(&mut self, key: u32) {
        self.0[word::KEY] = key.rotate_right(8);
    }

    /// Returns the protection domain.
    #[must_use]
    pub(super) const fn pd(&self) -> u32 {
        self.0[word::PD] & 0x1_ffff
    }
    /// Returns whether FAST_REG is allowed.
    #[must_use]
    pub(super) const fn fast_register(&self) -> bool {
        self.0[word::PD] & 1 << 27 != 0
    }
    /// Returns whether LOCAL_INV may invalidate the key.
    #[must_use]
    pub(super) const fn local_invalidate(&self) -> bool {
        self.0[word::PD] & 1 << 25 != 0
    }
    /// Returns whether a peer's SEND may invalidate the key.
    #[must_use]
    pub(super) const fn remote_invalidate(&self) -> bool {
        self.0[word::PD] & 1 << 24 != 0
    }

    /// Returns the first address.
    #[must_use]
    pub(super) const fn start(&self) -> u64 {
        self.double(word::START)
    }
    /// Returns the length in bytes, or `None` for the whole address space.
    #[must_use]
    pub(super) const fn len(&self) -> Option<u64> {
        match self.double(word::LEN) {
            u64::MAX => None,
            0 if self.0[word::LEN64] >> 22 & 1 != 0 => None,
            len => Some(len),
        }
    }
    /// Sets the first address and the length in bytes.
    pub(super) const fn set_range(&mut self, start: u64, len: u64) {
        self.put_double(word::START, start);
        self.put_double(word::LEN, len);
    }
    /// Returns whether `len` bytes from `at` are in range.
    #[must_use]
    pub(super) const fn covers(&self, at: u64, len: u64) -> bool {
        let Some(end) = at.checked_add(len) else { return false };
        match self.len() {
            None => true,
            Some(bytes) => at >= self.start() && end <= self.start().saturating_add(bytes),
        }
    }

    /// Returns the key of the region to which the window is bound.
    #[must_use]
    pub(super) const fn window_lkey(&self) -> u32 {
        self.0[word::LKEY]
    }
    /// Returns the address of the window's first byte in its region.
    #[must_use]
    pub(super) const fn window_base(&self) -> u64 {
        self.double(word::MTT)
    }
    /// Sets the window's region and its first address in it.
    pub(super) const fn set_window(&mut self, lkey: u32, base: u64) {
        self.0[word::LKEY] = lkey;
        self.put_double(word::MTT, base);
    }
    /// Returns the number of windows bound to the region.
    #[must_use]
    pub(super) const fn windows(&self) -> u32 {
        self.0[word::WINDOWS]
    }
    /// Sets the number of windows bound to the region.
    pub(super) const fn set_windows(&mut self, windows: u32) {
        self.0[word::WINDOWS] = windows;
    }

    /// Returns the byte offset of the region's first entry in the page table.
    #[must_use]
    pub(super) const fn mtt(&self) -> u64 {
        self.double(word::MTT) & !7
    }
    /// Returns the number of page table entries that FAST_REG may fill.
    #[must_use]
    pub(super) const fn mtt_count(&self) -> u32 {
        self.0[word::MTT_COUNT]
    }
    /// Returns log2 of the page size in bytes.
    #[must_use]
    pub(super) const fn log_page(&self) -> u8 {
        (self.0[word::LOG_PAGE] & 0x3f) as u8
    }
    /// Returns the region's offset in its first page. The low bits of the first address contain it too, as
    /// far as the alignment of pages in memory and in the region agrees, and Linux writes only those.
    #[must_use]
    pub(super) const fn first_byte(&self) -> u64 {
        (self.0[word::FIRST_BYTE] & 0x1f_ffff) as u64 | self.start() & ((1 << self.log_page()) - 1)
    }
    /// Sets the page size and the offset in the first page.
    pub(super) const fn set_pages(&mut self, log_page: u8, first_byte: u32) {
        self.0[word::LOG_PAGE] = log_page as u32;
        self.0[word::FIRST_BYTE] = first_byte & 0x1f_ffff;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entry that Linux writes for a region of 0x3000 bytes at 0x7f00_1234_5678 with all rights but
    /// atomics, key 0x8001_2307.
    #[test]
    fn golden() {
        let mut bytes = [0; LEN];
        for (at, word) in [
            (0x00, 0xf002_3d00),
            (0x08, 0x0780_0123),
            (0x0c, 0x0300_0042),
            (0x10, 0x0000_7f00),
            (0x14, 0x1234_5678),
            (0x1c, 0x0000_3000),
            (0x30, 0x0000_1238),
            (0x38, 12u32),
        ] {
            bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        let mut entry = Entry::parse(&bytes);
        assert_eq!(entry.bytes(), bytes);
        assert_eq!((entry.owner(), entry.is_region(), entry.is_physical()), (Owner::Software, true, false));
        assert_eq!((entry.key(), entry.pd()), (0x8001_2307, 0x42));
        assert_eq!((entry.start(), entry.len()), (0x7f00_1234_5678, Some(0x3000)));
        assert_eq!((entry.mtt(), entry.log_page(), entry.first_byte()), (0x1238, 12, 0x678));
        assert!(entry.local_invalidate() && entry.remote_invalidate() && !entry.fast_register());
        assert!(entry.gives(Access::RemoteWrite) && !entry.gives(Access::Atomic) && !entry.may_bind());
        assert!(entry.covers(entry.start(), 0x3000) && !entry.covers(entry.start() + 1, 0x3000));
        assert!(!entry.covers(entry.start() - 1, 1) && !entry.covers(u64::MAX, 2));
        entry.set_owner(Owner::Hardware);
        entry.set_key(0x8001_2308);
        assert_eq!(entry.bytes()[..12], [0x00, 0x02, 0x3d, 0x00, 0, 0, 0, 0, 0x08, 0x80, 0x01, 0x23]);
    }

    #[test]
    fn a_region_of_all_addresses() {
        let mut entry = Entry::default();
        entry.set_range(0, u64::MAX);
        assert!(entry.covers(0, 1) && entry.covers(u64::MAX - 1, 1) && !entry.covers(u64::MAX, 1));
        // The entry that iPXE writes.
        let mut bytes = [0; LEN];
        bytes[0x29] = 0x40;
        assert_eq!(Entry::parse(&bytes).len(), None);
    }
}
