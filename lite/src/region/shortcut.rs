//! What a handle keeps of its mapping: where the region lay when it was mapped, and what the handle might do with it.

use super::stamp::StampId;
use crate::Permissions;
use crate::op::PlaceId;
use platform::IoAddr;

/// Addresses are kept in pages of so many bytes.
const PAGE_BITS: u32 = 12;
const ADDR_BITS: u32 = 40;
const PLACE_BITS: u32 = 16;
const RIGHTS_BITS: u32 = 8;
const LEN_BITS: u32 = 40;
const STAMP_BITS: u32 = 24;

const _: () = assert!(ADDR_BITS + PLACE_BITS + RIGHTS_BITS == 64 && LEN_BITS + STAMP_BITS == 64);
const _: () = assert!(Permissions::all().bits() < 1 << RIGHTS_BITS);

/// A region in one piece on another node, as long as its mapping's stamp is fresh, in 16 bytes: how many lines of the
/// processor's cache an operation at random takes decides what it costs, so a handle is half of one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shortcut {
    /// From the low end: rights, place, number of the first page.
    start: u64,
    /// From the low end: stamp, bytes.
    extent: u64,
}

impl Shortcut {
    /// Gives no right to anything.
    pub(crate) const NONE: Self = Self { start: 0, extent: 0 };

    /// `None` if the figures are too large: a page beyond 2^52, a TiB, 2^24 mappings or 2^16 lives of peers.
    pub(crate) fn new(
        place: PlaceId,
        addr: IoAddr,
        len: u64,
        rights: Permissions,
        stamp: StampId,
    ) -> Option<Self> {
        let page = (addr.0.is_multiple_of(1 << PAGE_BITS)).then_some(addr.0 >> PAGE_BITS)?;
        let fits = |value: u64, bits: u32| (value >> bits == 0).then_some(value);
        let place = fits(u64::from(place.number()), PLACE_BITS)?;
        let start = fits(page, ADDR_BITS)? << (PLACE_BITS + RIGHTS_BITS) | place << RIGHTS_BITS;
        let extent = fits(len, LEN_BITS)? << STAMP_BITS | fits(u64::from(stamp.number()), STAMP_BITS)?;
        Some(Self { start: start | u64::from(rights.bits()), extent })
    }

    /// Where the `len` bytes at `offset` were, if they were the region's and `right` was given to them.
    #[inline]
    pub(crate) fn find(self, right: Permissions, offset: u64, len: u64) -> Option<IoAddr> {
        let lacking = u64::from(right.bits()) & !self.start;
        let room = self.len().checked_sub(offset)?;
        // Page and length are too short for the sum to overflow.
        let first = self.start >> (PLACE_BITS + RIGHTS_BITS) << PAGE_BITS;
        (lacking == 0 && len <= room).then_some(IoAddr(first + offset))
    }

    /// Bytes of the region.
    #[inline]
    pub(crate) fn len(self) -> u64 {
        self.extent >> STAMP_BITS
    }

    /// Where the region was.
    #[inline]
    pub(crate) fn place(self) -> PlaceId {
        PlaceId::from_number((self.start >> RIGHTS_BITS) as u32 & ((1 << PLACE_BITS) - 1))
    }

    /// Of the mapping.
    #[inline]
    pub(crate) fn stamp(self) -> StampId {
        StampId::from_number(self.extent as u32 & ((1 << STAMP_BITS) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_kept_is_found_and_nothing_else(
            page in 0u64..1 << ADDR_BITS, place in 0u32..1 << PLACE_BITS, stamp in 0u32..1 << STAMP_BITS,
            rights in 1u32..=Permissions::all().bits(), len in 0u64..1 << LEN_BITS, offset: u64, run: u64,
        ) {
            let (place, stamp) = (PlaceId::from_number(place), StampId::from_number(stamp));
            let rights = Permissions::from_bits_truncate(rights);
            let addr = IoAddr(page << PAGE_BITS);
            let short = Shortcut::new(place, addr, len, rights, stamp).unwrap();
            prop_assert_eq!((short.place(), short.stamp(), short.len()), (place, stamp, len));
            let (offset, run) = (offset % (len + 1), run % (len + 1));
            let fits = offset + run <= len;
            for right in [Permissions::READ, Permissions::WRITE, Permissions::ATOMIC] {
                let found = short.find(right, offset, run);
                prop_assert_eq!(found, (fits && rights.contains(right)).then_some(IoAddr(addr.0 + offset)));
                prop_assert_eq!(short.find(right, len + 1, 0), None);
                prop_assert_eq!(short.find(right, u64::MAX, 1), None);
                prop_assert_eq!(short.find(right, 1, u64::MAX), None);
                prop_assert_eq!(Shortcut::NONE.find(right, 0, 0), None);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let new = |place, addr, len, stamp| {
            let (place, stamp) = (PlaceId::from_number(place), StampId::from_number(stamp));
            Shortcut::new(place, IoAddr(addr), len, Permissions::all(), stamp).is_some()
        };
        assert!(new(0xffff, (1 << 52) - 4096, (1 << 40) - 1, 0xff_ffff));
        assert!(!new(0x1_0000, 0, 1, 0) && !new(0, 1 << 52, 1, 0) && !new(0, 1, 1, 0));
        assert!(!new(0, 0, 1 << 40, 0) && !new(0, 0, 1, 1 << 24));
    }
}
