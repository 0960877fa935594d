//! The part of a handle that belongs to its mapping alone: the mapping's number, and the address of the
//! region when it was mapped.

use super::stamp::{STAMP_BITS, StampId};
use platform::IoAddr;

/// The logarithm of the page size in which addresses are kept.
const PAGE_BITS: u32 = 12;
const ADDR_BITS: u32 = u64::BITS - STAMP_BITS;

/// The number and the address of a handle, in 8 bytes. With its shared part, a handle has 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Shortcut(u64);

impl Shortcut {
    /// Returns the number only, for a region whose address does not matter.
    pub(super) fn without_address(stamp: StampId) -> Self {
        Self(u64::from(stamp.number()))
    }

    /// Returns `None` for a region that does not begin at a page, or that begins beyond 2^48.
    pub(super) fn new(stamp: StampId, addr: IoAddr) -> Option<Self> {
        let page = addr.0.is_multiple_of(1 << PAGE_BITS).then_some(addr.0 >> PAGE_BITS)?;
        (page >> ADDR_BITS == 0).then_some(Self(page << STAMP_BITS | u64::from(stamp.number())))
    }

    /// Returns the address of the byte at `offset`, if the region has it.
    #[inline]
    pub(super) fn at(self, offset: u64) -> IoAddr {
        // Nothing overflows: a page has fewer bits.
        IoAddr((self.0 >> STAMP_BITS << PAGE_BITS) + offset)
    }

    /// Returns the number of the mapping's stamp.
    #[inline]
    pub(super) fn stamp(self) -> StampId {
        StampId::from_number(self.0 as u32 & ((1 << STAMP_BITS) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_kept_is_found(page in 0u64..1 << ADDR_BITS, stamp in 0u32..1 << STAMP_BITS, offset in 0u64..1 << 48) {
            let (stamp, addr) = (StampId::from_number(stamp), page << PAGE_BITS);
            let short = Shortcut::new(stamp, IoAddr(addr)).unwrap();
            prop_assert_eq!((short.stamp(), short.at(offset)), (stamp, IoAddr(addr + offset)));
            prop_assert_eq!(Shortcut::without_address(stamp).stamp(), stamp);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let new = |addr| Shortcut::new(StampId::from_number(1), IoAddr(addr)).is_some();
        assert!(new((1 << 48) - 4096) && !new(1 << 48) && !new(1));
    }
}
