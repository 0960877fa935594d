//! The one key: a region over all of the card's address space, whose addresses need no table (a physical MPT).

use crate::command::{Command, Commands, Opcode};
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::icm::Object;
use crate::layout::{Field, Mailbox};
use crate::tables::Tables;

/// The mailbox (Linux `mlx4_mpt_entry`, PRM `mpt`).
mod field {
    use super::Field;
    pub(super) const STATUS: Field = Field::bits(0x00, 31, 28);
    pub(super) const FLAGS: Field = Field::bits(0x00, 27, 0);
    pub(super) const KEY: Field = Field::word(0x08);
    pub(super) const DOMAIN: Field = Field::bits(0x0c, 23, 0);
    pub(super) const LEN: usize = 0x18;
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

/// Makes the key, with every right but that to be invalidated, and gives it. `chance` decides its variable bits: the
/// eight of the key proper, and those of its index that are beyond the table, which the card compares too.
pub(crate) fn create<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    tables: &mut Tables<B>,
    place: Place,
    domain: u32,
    chance: u32,
) -> Result<u32, Error> {
    const RIGHTS: u32 = ATOMIC | REMOTE_WRITE | REMOTE_READ | LOCAL_WRITE | LOCAL_READ;
    let Place { index, log_count } = place;
    tables.back(hw, commands, Object::Key, index.into(), 1)?;
    let in_table = (1 << log_count) - 1;
    // The variable byte comes first in the entry, last in the key.
    let stored = chance & !in_table | index & in_table;
    let mut mailbox = Mailbox::new()
        .with(field::STATUS, SOFTWARE)
        .with(field::FLAGS, MIO | RIGHTS | PHYSICAL | REGION)
        .with(field::KEY, stored)
        .with(field::DOMAIN, domain);
    mailbox.set_wide(field::LEN, u64::MAX);
    commands.send(hw, Command::new(Opcode::Sw2HwMpt).of(index & in_table), &mailbox)?;
    Ok(stored.rotate_left(8))
}
