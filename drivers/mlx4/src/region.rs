//! Keys: the one over all of the card's address space, whose addresses need no table (a physical MPT), and if peers may
//! reach ranges of memory only, one over those, with an entry for each page (MTT).

use crate::command::{Command, Commands, Opcode};
use crate::config::{Ranges, Remote};
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::icm::Object;
use crate::icm::PRESENT;
use crate::icm::pages::{LOG_PAGE, PAGE};
use crate::layout::{Field, Mailbox};
use crate::start::chance;
use crate::tables::Tables;
use platform::IoAddr;

/// The mailbox (Linux `mlx4_mpt_entry`, PRM `mpt`).
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

/// What Linux writes: the card takes the entry over.
const SOFTWARE: u32 = 0xf;
const MIO: u32 = 1 << 17;
const ATOMIC: u32 = 1 << 14;
const REMOTE_WRITE: u32 = 1 << 13;
const REMOTE_READ: u32 = 1 << 12;
const LOCAL_WRITE: u32 = 1 << 11;
const LOCAL_READ: u32 = 1 << 10;
const PHYSICAL: u32 = 1 << 9;
const REGION: u32 = 1 << 8;

/// A place in the table of keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Its number. Bits beyond the table are the master's, if one gave it.
    pub(crate) index: u32,
    /// log2 of the table's entries, below 32.
    pub(crate) log_count: u32,
}

/// The keys: as work requests name them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Keys {
    /// What work of this side names: over all memory.
    pub(crate) local: u32,
    /// What peers name. The same, unless they may reach ranges of memory only.
    pub(crate) remote: u32,
}

/// The first address of ranges, and the bytes from it to the end of the last one.
pub(crate) fn span(ranges: &Ranges) -> (IoAddr, u64) {
    let first = ranges.first().map_or(0, |range| range.start);
    (IoAddr(first), ranges.last().map_or(0, |range| range.end.saturating_sub(first)))
}

/// Pages of one size that the ranges of a key are made of, those of the holes between them too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pages {
    ranges: Ranges,
    log_len: u32,
    count: u64,
}

impl Pages {
    /// The largest pages that the ranges of a key are made of. `None` if it has none.
    ///
    /// # Errors
    /// If a range is empty, does not begin or end with a page, or comes before the end of the one before it.
    pub(crate) fn of(remote: &Remote) -> Result<Option<Self>, Error> {
        let Remote::Ranges(ranges) = remote else { return Ok(None) };
        Self::largest(ranges).map(Some).ok_or(Error::Lacks("a part of memory that begins with a page"))
    }

    fn largest(ranges: &Ranges) -> Option<Self> {
        /// The field has 5 bits beyond 4096.
        const LOG_MOST: u32 = 31;
        let (last, others) = ranges.split_last()?;
        let ordered = ranges.iter().all(|range| range.start < range.end)
            && ranges.windows(2).all(|pair| matches!(pair, [a, b] if a.end <= b.start));
        let ends =
            others.iter().fold(last.end.checked_next_multiple_of(PAGE)?, |bits, range| bits | range.end);
        let bits = ranges.iter().fold(ends, |bits, range| bits | range.start);
        let log_len = bits.trailing_zeros().min(LOG_MOST);
        let (_, len) = span(ranges);
        (ordered && log_len >= LOG_PAGE).then(|| {
            let count = len.div_ceil(1 << log_len);
            Self { ranges: ranges.clone(), log_len, count }
        })
    }

    /// How many page entries the key has.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// The entry of a page by its number: its address, and whether it is present. That of a hole is not present, and has the
    /// address of the first page. A card that heeds the bit refuses an access. One that does not makes it in memory that peers
    /// may reach anyway, and so does any card for a virtual function, whose master sets the bit in all entries (Linux
    /// `mlx4_WRITE_MTT_wrapper`).
    fn entry(&self, index: u64) -> u64 {
        let (first, _) = span(&self.ranges);
        let at = first.0.saturating_add(index << self.log_len);
        let inside = self.ranges.iter().any(|range| range.contains(&at));
        if inside { at | PRESENT } else { first.0 }
    }
}

/// Makes the keys, with every right but that to be invalidated, and gives them. Their variable bits, the eight of a key proper
/// and those of its index that are beyond the table, which the card compares too, are by chance, or those of `former` ones.
/// Without `pages` peers name the same key as this side.
pub(crate) fn create<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    tables: &mut Tables<B>,
    [first, second]: [Place; 2],
    domain: u32,
    pages: Option<&Pages>,
    former: Option<Keys>,
) -> Result<Keys, Error> {
    const LOCAL: u32 = MIO | LOCAL_WRITE | LOCAL_READ | REGION;
    const PEERS: u32 = ATOMIC | REMOTE_WRITE | REMOTE_READ;
    let bits = |former: Option<u32>| former.map_or_else(|| chance(hw), |key| key.rotate_right(8));
    let local = first.key(bits(former.map(|keys| keys.local)));
    let peers = if pages.is_none() { PEERS } else { 0 };
    let mut all = entry(LOCAL | PHYSICAL | peers, local, domain);
    all.set_wide(field::LEN, u64::MAX);
    register(hw, commands, tables, first, &all)?;
    let Some(pages) = pages else { return Ok(Keys { local, remote: local }) };
    // A card may not heed the bounds of a key whose addresses need no table: this one has a table.
    let run = tables.map(hw, commands, pages.count, &|index| pages.entry(index))?;
    let remote = second.key(bits(former.map(|keys| keys.remote)));
    let (base, len) = span(&pages.ranges);
    let mut ranges = entry(LOCAL | PEERS, remote, domain).with(field::LOG_PAGE, pages.log_len);
    ranges.set_wide(field::START, base.0);
    ranges.set_wide(field::LEN, len);
    ranges.set_wide(field::MTT, run.offset());
    register(hw, commands, tables, second, &ranges)?;
    Ok(Keys { local, remote })
}

impl Place {
    /// The bits that tell the key there from others.
    const fn in_table(self) -> u32 {
        (1 << self.log_count) - 1
    }

    /// The key there with these variable bits.
    const fn key(self, bits: u32) -> u32 {
        // The variable byte comes first in the entry, last in the key.
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

fn register<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    tables: &mut Tables<B>,
    place: Place,
    entry: &Mailbox,
) -> Result<(), Error> {
    tables.back(hw, commands, Object::Key, place.index.into(), 1)?;
    commands.send(hw, Command::new(Opcode::Sw2HwMpt).of(place.index & place.in_table()), entry)
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

    /// A card that does not heed the bit of presence finds in no entry an address that peers may not reach.
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
