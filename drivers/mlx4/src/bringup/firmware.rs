//! The card's firmware: its version, its memory, and its start.

use crate::command::{Command, Commands, Opcode};
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::icm::pages::{PAGE, lend};
use crate::mailbox::{Field, Mailbox};
use core::fmt;

/// QUERY_FW (Linux `mlx4_QUERY_FW`, PRM `query_fw`).
mod field {
    use super::Field;
    pub(super) const PAGES: Field = Field::half(0x00);
    pub(super) const MAJOR: Field = Field::half(0x02);
    pub(super) const SUBMINOR: Field = Field::half(0x04);
    pub(super) const MINOR: Field = Field::half(0x06);
    pub(super) const COMMAND_REVISION: Field = Field::half(0x0a);
    pub(super) const ERROR_BUFFER: usize = 0x30;
    pub(super) const ERROR_WORDS: Field = Field::word(0x38);
    /// Half the number of the BAR that contains the error buffer.
    pub(super) const ERROR_BAR: Field = Field::bits(0x3c, 31, 30);
}

/// The revision of the command interface in which INIT_PORT has no mailbox.
const COMMAND_REVISION: u32 = 3;
/// The length of BAR 0, in bytes.
const REGISTERS_LEN: u64 = 1 << 20;

/// A firmware version, such as 2.42.5000.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version(pub u16, pub u16, pub u16);

impl Version {
    fn of(about: &Mailbox) -> Self {
        let half = |field| about.get(field) as u16;
        Self(half(field::MAJOR), half(field::MINOR), half(field::SUBMINOR))
    }
}

/// Queries the version of the running firmware.
pub(crate) fn version(commands: &mut Commands<'_, impl Hardware>) -> Result<Version, Error> {
    commands.exec_out(Command::new(Opcode::QueryFw)).map(|about| Version::of(&about))
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The running firmware, and the memory in which it runs.
pub(crate) struct Firmware<B> {
    pub(crate) version: Version,
    /// The register of BAR 0 that is not 0 once the card has failed.
    pub(crate) error_buffer: Option<u32>,
    _memory: B,
}

impl<B: Block> Firmware<B> {
    /// Lends the firmware its memory and starts it.
    pub(crate) fn start(commands: &mut Commands<'_, impl Hardware<Block = B>>) -> Result<Self, Error> {
        let about = commands.exec_out(Command::new(Opcode::QueryFw))?;
        if about.get(field::COMMAND_REVISION) != COMMAND_REVISION {
            return Err(Error::Lacks("the command interface of revision 3"));
        }
        let pages = u64::from(about.get(field::PAGES));
        if pages == 0 {
            return Err(Error::Nonsense("its firmware needs no memory"));
        }
        let memory = commands.hw.allocate(pages * PAGE).ok_or(Error::NoMemory("the card's firmware"))?;
        lend(commands, Opcode::MapFa, None, memory.addr(), pages)?;
        commands.exec(Command::new(Opcode::RunFw))?;
        Ok(Self { version: Version::of(&about), error_buffer: error_buffer(&about), _memory: memory })
    }
}

fn error_buffer(about: &Mailbox) -> Option<u32> {
    let at = about.wide(field::ERROR_BUFFER);
    let there = about.has(field::ERROR_WORDS) && about.get(field::ERROR_BAR) == 0;
    let fits = at.is_multiple_of(4) && at < REGISTERS_LEN;
    (there && fits).then_some(at as u32)
}
