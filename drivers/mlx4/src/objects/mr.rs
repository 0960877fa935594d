//! Memory keys. One covers the card's whole address space and needs no page table (a physical MPT). If peers
//! may reach only ranges of memory, a second one covers those, with an entry for each page (MTT).

use crate::command::{Command, Opcode};
use crate::config::{Ranges, Remote};
use crate::device::Device;
use crate::error::Error;
use crate::hardware::{Hardware, random_u32};
use crate::icm::pages::{LOG_PAGE, PAGE};
use crate::icm::{Object, PRESENT};
use crate::mailbox::{Field, Mailbox};
use platform::IoAddr;

/// The fields of the mailbox of a memory region (Linux `mlx4_mpt_entry`, PRM `mpt`).
mod field {
    use super::Field;
    pub(super) const STATUS: Field = Field::bits(0x00, 31, 28);
    pub(super) const FLAGS: Field = Field::bits(0x00, 27, 0);
    pub(super) const KEY: Field = Field::word(0x08);
    pub(super) const DOMAIN: Field = Field::bits(0x0c, 23, 0);
    pub(super) const START: usize = 0x10;
    pub(super) const LEN: usize = 0x18;
    pub(super) const MTT: usize = 0x2c;
    pub(super) const LOG_PAGE: Field = Field::bits(0x38, 4, 0);
}

/// The status that Linux writes: the entry passes to the card.
const SOFTWARE: u32 = 0xf;
const MIO: u32 = 1 << 17;
const ATOMIC: u32 = 1 << 14;
const REMOTE_WRITE: u32 = 1 << 13;
const REMOTE_READ: u32 = 1 << 12;
const LOCAL_WRITE: u32 = 1 << 11;
const LOCAL_READ: u32 = 1 << 10;
const PHYSICAL: u32 = 1 << 9;
const REGION: u32 = 1 << 8;

/// An entry of the table of keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MptSlot {
    /// The entry's index. Bits beyond the table are the master's, if it assigned the index.
    pub(crate) index: u32,
    /// log2 of the number of entries in the table, below 32.
    pub(crate) log_count: u32,
}

/// The entries of the keys. They are equal if peers name the local key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeySlots {
    pub(crate) local: MptSlot,
    pub(crate) remote: MptSlot,
}

/// The keys of memory that work requests name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Keys {
    /// The key that local work requests name. It covers all memory.
    pub(crate) local: u32,
    /// The key that peers name. It equals `local`, unless peers may reach only ranges of memory.
    pub(crate) remote: u32,
}

/// Returns the first address of ranges, and the number of bytes from there to the end of the last range.
pub(crate) fn span(ranges: &Ranges) -> (IoAddr, u64) {
    let first = ranges.first().map_or(0, |range| range.start);
    (IoAddr(first), ranges.last().map_or(0, |range| range.end.saturating_sub(first)))
}

/// The pages of one size in the ranges of a key and in the holes between them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pages {
    ranges: Ranges,
    log_len: u32,
    count: u64,
}

impl Pages {
    /// Chooses the largest pages that the ranges consist of. Returns `None` for a key without ranges.
    ///
    /// # Errors
    /// If a range is empty, does not begin or end at a page boundary, or begins before the end of the
    /// previous one.
    pub(crate) fn of(remote: &Remote) -> Result<Option<Self>, Error> {
        let Remote::Ranges(ranges) = remote else { return Ok(None) };
        Self::largest(ranges)
            .map(Some)
            .ok_or(Error::Lacks("keys for memory that does not begin and end with a page"))
    }

    fn largest(ranges: &Ranges) -> Option<Self> {
        /// The field has 5 bits above 4096.
        const LOG_MAX: u32 = 31;
        let (last, others) = ranges.split_last()?;
        let ordered = ranges.iter().all(|range| range.start < range.end)
            && ranges.windows(2).all(|pair| matches!(pair, [a, b] if a.end <= b.start));
        let ends =
            others.iter().fold(last.end.checked_next_multiple_of(PAGE)?, |bits, range| bits | range.end);
        let bits = ranges.iter().fold(ends, |bits, range| bits | range.start);
        let log_len = bits.trailing_zeros().min(LOG_MAX);
        let (_, len) = span(ranges);
        (ordered && log_len >= LOG_PAGE).then(|| {
            let count = len.div_ceil(1 << log_len);
            Self { ranges: ranges.clone(), log_len, count }
        })
    }

    /// Returns the number of page entries of the key.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the entry of a page by its index: the page's address, and the present bit. The entry of a hole
    /// is not present, and has the address of the first page. A card that honours the bit refuses the access.
    /// A card that ignores it accesses memory that peers may reach anyway. So does any card for a virtual
    /// function, whose master sets the bit in all entries (Linux `mlx4_WRITE_MTT_wrapper`).
    fn entry(&self, index: u64) -> u64 {
        let (first, _) = span(&self.ranges);
        let at = first.0.saturating_add(index << self.log_len);
        let inside = self.ranges.iter().any(|range| range.contains(&at));
        if inside { at | PRESENT } else { first.0 }
    }
}

/// Makes the keys, with every right except invalidation. The variable bits are the eight low bits of a key,
/// and those of its index that are beyond the table, which the card compares too. They are random, or those
/// of the `preserved` keys. Without `pages`, peers name the same key as this side.
pub(crate) fn create(
    device: &mut Device<'_, impl Hardware>,
    slots: KeySlots,
    domain: u32,
    pages: Option<&Pages>,
    preserved: Option<Keys>,
) -> Result<Keys, Error> {
    const LOCAL: u32 = MIO | LOCAL_WRITE | LOCAL_READ | REGION;
    const PEERS: u32 = ATOMIC | REMOTE_WRITE | REMOTE_READ;
    let hw = device.hw();
    let bits = |preserved: Option<u32>| preserved.map_or_else(|| random_u32(hw), |key| key.rotate_right(8));
    let local = slots.local.key(bits(preserved.map(|keys| keys.local)));
    let peers = if pages.is_none() { PEERS } else { 0 };
    let mut all = entry(LOCAL | PHYSICAL | peers, local, domain);
    all.set_wide(field::LEN, u64::MAX);
    register(device, slots.local, &all)?;
    let Some(pages) = pages else { return Ok(Keys { local, remote: local }) };
    // A card may ignore the bounds of a key without a page table. This key has one.
    let run = device.map(pages.count, &|index| pages.entry(index))?;
    let remote = slots.remote.key(bits(preserved.map(|keys| keys.remote)));
    let (base, len) = span(&pages.ranges);
    let mut ranges = entry(LOCAL | PEERS, remote, domain).with(field::LOG_PAGE, pages.log_len);
    ranges.set_wide(field::START, base.0);
    ranges.set_wide(field::LEN, len);
    ranges.set_wide(field::MTT, run.offset());
    register(device, slots.remote, &ranges)?;
    Ok(Keys { local, remote })
}

impl MptSlot {
    /// Returns the mask of the bits that are the index in the table.
    const fn in_table(self) -> u32 {
        (1 << self.log_count) - 1
    }

    /// Returns the memory key of this table entry with the given variable bits.
    const fn key(self, bits: u32) -> u32 {
        // The variable byte is the first in the entry and the last in the key.
        (bits & !self.in_table() | self.index & self.in_table()).rotate_left(8)
    }
}

fn entry(flags: u32, key: u32, domain: u32) -> Mailbox {
    Mailbox::new()
        .with(field::STATUS, SOFTWARE)
        .with(field::FLAGS, flags)
        .with(field::KEY, key.rotate_right(8))
        .with(field::DOMAIN, domain)
}

fn register(device: &mut Device<'_, impl Hardware>, slot: MptSlot, entry: &Mailbox) -> Result<(), Error> {
    device.ensure_icm(Object::Key, slot.index.into(), 1)?;
    device.commands.exec_in(Command::new(Opcode::Sw2HwMpt).of(slot.index & slot.in_table()), entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ops::Range;

    fn of(ranges: &[Range<u64>]) -> Option<Pages> {
        Pages::largest(&ranges.into())
    }

    #[test]
    fn a_range_is_made_of_the_largest_pages() {
        let pages = |base: u64, len: u64| {
            of(core::slice::from_ref(&(base..base.checked_add(len)?))).map(|p| (p.log_len, p.count))
        };
        assert_eq!(pages(0x1_0000_0000, 0x4000_0000), Some((30, 1)));
        assert_eq!(pages(0x1_0020_0000, 0x60_0000), Some((21, 3)));
        assert_eq!(pages(0x3000, 0x2001), Some((12, 3)), "the last is not whole");
        assert_eq!(pages(0x3001, 0x2000), None);
        assert_eq!(pages(0x3000, 0), None);
        assert_eq!(pages(0xffff_ffff_ffff_f000, 0x2000), None);
    }

    #[test]
    fn ranges_that_are_not_apart_or_not_of_pages_have_no_key() {
        assert!(of(&[0x1000..0x2000, 0x2000..0x3800]).is_some(), "the last ends with any byte");
        for ranges in [
            &[][..],
            &[0x1000..0x3000, 0x2000..0x4000],
            &[0x4000..0x5000, 0x1000..0x2000],
            &[0x1000..0x1800, 0x2000..0x3000],
            &[0x1000..0x2000, 0x2800..0x3000],
            &[0x1000..0x1000, 0x2000..0x3000],
        ] {
            assert_eq!(of(ranges), None, "{ranges:x?}");
        }
    }

    /// On a card that ignores the present bit, no entry leads to an address that peers may not reach.
    #[test]
    fn no_entry_has_an_address_outside_of_the_ranges() {
        const MIB: u64 = 1 << 20;
        let ranges = [4 * MIB..8 * MIB, 16 * MIB..18 * MIB, 64 * MIB..66 * MIB];
        let pages = of(&ranges).unwrap();
        assert_eq!((pages.log_len, pages.count), (21, 31));
        let mut present = 0;
        for index in 0..pages.count {
            let (at, entry) = (4 * MIB + index * 2 * MIB, pages.entry(index));
            let inside = ranges.iter().any(|range| range.contains(&at));
            assert_eq!(entry, if inside { at | PRESENT } else { 4 * MIB });
            present += entry & PRESENT;
        }
        assert_eq!(present, 4);
    }

    #[test]
    fn a_terabyte_in_pages_of_1_gib_takes_a_thousand_entries() {
        const GIB: u64 = 1 << 30;
        let pages = of(&[GIB..2 * GIB, 4 * GIB..1026 * GIB]).unwrap();
        assert_eq!((pages.log_len, pages.count), (30, 1025));
        let pages = of(&[GIB / 512..2 * GIB, 4 * GIB..1026 * GIB]).unwrap();
        assert_eq!((pages.log_len, pages.count), (21, 525_311));
    }
}
