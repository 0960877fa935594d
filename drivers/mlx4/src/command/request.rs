//! A command, its completion, and the wait for the card, as both transports of commands need them.

use super::opcode::Opcode;
use crate::error::Error;
use crate::hardware::Hardware;
use core::time::Duration;

/// The maximum time of a command on a card that works: those of Linux's classes complete within milliseconds.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(10);
/// The number of polls without a pause, and the pause between later ones.
const EAGER_POLLS: u32 = 64;
const PAUSE: Duration = Duration::from_micros(2);
/// The token of a polled command in Linux.
pub(crate) const POLL_TOKEN: u16 = 0xffff;

/// A command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) opcode: Opcode,
    /// The input modifier, which names the object.
    pub(crate) modifier: u32,
    op_modifier: u8,
    /// The input parameter: an immediate value, or the address of a mailbox.
    pub(crate) parameter: u64,
}

impl Command {
    /// Makes a command with all parameters zero.
    pub(crate) const fn new(opcode: Opcode) -> Self {
        Self { opcode, modifier: 0, op_modifier: 0, parameter: 0 }
    }

    /// Sets the input modifier, which names the object.
    pub(crate) const fn of(self, modifier: u32) -> Self {
        Self { modifier, ..self }
    }

    /// Sets the opcode modifier, below 16.
    pub(crate) const fn variant(self, op_modifier: u8) -> Self {
        Self { op_modifier, ..self }
    }

    /// Sets an immediate input parameter, in place of a mailbox.
    pub(crate) const fn immediate(self, parameter: u64) -> Self {
        Self { parameter, ..self }
    }

    /// Returns the opcode with its modifier, as both transports have them.
    pub(crate) const fn operation(self) -> u16 {
        ((self.op_modifier & 0xf) as u16) << 12 | self.opcode as u16
    }
}

/// The completion of a command: its status code and its immediate output.
pub(crate) struct CommandResult {
    pub(crate) code: u8,
    pub(crate) output: u64,
}

/// Calls `poll` until it returns a value. Fails with `late` after `limit`.
pub(crate) fn poll_until<T>(
    hw: &impl Hardware,
    limit: Duration,
    late: Error,
    mut poll: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let deadline = hw.now() + limit;
    let mut polls = 0;
    loop {
        if let Some(found) = poll()? {
            return Ok(found);
        }
        if hw.now() >= deadline {
            return Err(late);
        }
        polls += 1;
        if polls > EAGER_POLLS {
            hw.wait(PAUSE);
        }
    }
}
