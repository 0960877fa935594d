//! The one key: a region over all of the card's address space, whose addresses need no table (a physical MPT).

use crate::command::{Command, Commands, Opcode};
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::icm::layout::LOG_MPTS;
use crate::icm::{Icm, Object};
use crate::layout::{Field, Mailbox};

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

/// Makes the key, with every right but that to be invalidated, and gives it. `chance` decides its variable bits: the
/// eight of the key proper, and those of its index that are beyond the table, which the card compares too.
pub(crate) fn create<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    icm: &mut Icm<B>,
    first: u32,
    domain: u32,
    chance: u32,
) -> Result<u32, Error> {
    const RIGHTS: u32 = ATOMIC | REMOTE_WRITE | REMOTE_READ | LOCAL_WRITE | LOCAL_READ;
    icm.back(hw, commands, Object::Key, first.into(), 1)?;
    // The variable byte comes first in the entry, last in the key.
    let stored = chance & !((1 << LOG_MPTS) - 1) | first;
    let mut mailbox = Mailbox::new()
        .with(field::STATUS, SOFTWARE)
        .with(field::FLAGS, MIO | RIGHTS | PHYSICAL | REGION)
        .with(field::KEY, stored)
        .with(field::DOMAIN, domain);
    mailbox.set_wide(field::LEN, u64::MAX);
    commands.send(hw, Command::new(Opcode::Sw2HwMpt).of(first), &mailbox)?;
    Ok(stored.rotate_left(8))
}
