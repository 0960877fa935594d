//! Keys: the one over all of the card's address space, whose addresses need no table (a physical MPT), and if peers may
//! reach a part only, one over that.

use crate::command::{Command, Commands, Opcode};
use crate::config::Remote;
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::icm::Object;
use crate::icm::pages::{LOG_PAGE, PAGE};
use crate::layout::{Field, Mailbox};
use crate::start::chance;
use crate::tables::Tables;

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
    /// What peers name. The same, unless they may reach a part only.
    pub(crate) remote: u32,
}

/// Pages of one size that a part of memory is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pages {
    log_len: u32,
    count: u64,
}

impl Pages {
    /// The largest pages that a part is made of. `None`: it does not begin with one, or has no end.
    fn of(base: u64, len: u64) -> Option<Self> {
        /// The field has 5 bits beyond 4096.
        const LOG_MOST: u32 = 31;
        base.checked_add(len)?;
        let log_len = (base | len.next_multiple_of(PAGE)).trailing_zeros().min(LOG_MOST);
        (len > 0 && log_len >= LOG_PAGE).then(|| Self { log_len, count: len.div_ceil(1 << log_len) })
    }
}

/// Makes the keys, with every right but that to be invalidated, and gives them. Their variable bits, the eight of a key proper
/// and those of its index that are beyond the table, which the card compares too, are by chance, or those of `former` ones.
pub(crate) fn create<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    tables: &mut Tables<B>,
    [first, second]: [Place; 2],
    domain: u32,
    remote: Remote,
    former: Option<Keys>,
) -> Result<Keys, Error> {
    const LOCAL: u32 = MIO | LOCAL_WRITE | LOCAL_READ | REGION;
    const PEERS: u32 = ATOMIC | REMOTE_WRITE | REMOTE_READ;
    let bits = |former: Option<u32>| former.map_or_else(|| chance(hw), |key| key.rotate_right(8));
    let local = first.key(bits(former.map(|keys| keys.local)));
    let peers = if remote == Remote::All { PEERS } else { 0 };
    let mut all = entry(LOCAL | PHYSICAL | peers, local, domain);
    all.set_wide(field::LEN, u64::MAX);
    register(hw, commands, tables, first, &all)?;
    let Remote::Part { base, len } = remote else { return Ok(Keys { local, remote: local }) };
    // A card may not heed the bounds of a key whose addresses need no table: this one has a table.
    let pages = Pages::of(base.0, len).ok_or(Error::Lacks("a part of memory that begins with a page"))?;
    let run = tables.map(hw, commands, base, pages.count, pages.log_len)?;
    let remote = second.key(bits(former.map(|keys| keys.remote)));
    let mut part = entry(LOCAL | PEERS, remote, domain).with(field::LOG_PAGE, pages.log_len);
    part.set_wide(field::START, base.0);
    part.set_wide(field::LEN, len);
    part.set_wide(field::MTT, run.offset());
    register(hw, commands, tables, second, &part)?;
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

    #[test]
    fn a_part_is_made_of_the_largest_pages() {
        let pages = |base, len| Pages::of(base, len).map(|pages| (pages.log_len, pages.count));
        assert_eq!(pages(0x1_0000_0000, 0x4000_0000), Some((30, 1)));
        assert_eq!(pages(0x1_0020_0000, 0x60_0000), Some((21, 3)));
        assert_eq!(pages(0x3000, 0x2001), Some((12, 3)), "the last is not whole");
        assert_eq!(pages(0x3001, 0x2000), None);
        assert_eq!(pages(0x3000, 0), None);
        assert_eq!(pages(0xffff_ffff_ffff_f000, 0x2000), None);
    }
}
