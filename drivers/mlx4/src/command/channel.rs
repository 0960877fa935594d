//! The channel by which a virtual function speaks with its master, the driver of the physical function: a word at a time,
//! answered by a toggle, and commands in registers that lie in memory (vHCR; Linux `mlx4/cmd.c`).

use super::{Command, Ended, POLL_TOKEN, TIME_LIMIT, look};
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;

/// Registers in BAR 2: what the slave says, what the master answers, what the channel can do, and flags.
const SAID: u64 = 0x0;
const ANSWER: u64 = 0x4;
const CAPABILITIES: u64 = 0x8;
const FLAGS: u64 = 0xc;

const TOGGLE: u32 = 1 << 31;
/// Of an answer: the master has taken all from the slave, which has to begin anew.
const GIVEN_UP: u32 = 1 << 17;
/// Of the capabilities: a flag resets the function.
const RESETS: u32 = 1 << 30;
/// Of the flags: a reset is wanted, it was done, and no master is there.
const RESET: u32 = 1 << 16;
const RESET_DONE: u32 = 1 << 8;
const OFFLINE: u32 = 1 << 9;
/// The revision of the channel, in an answer to a reset.
const REVISION: u32 = 1;

/// How long the two words may be out of step: the master is there, but has not seen the function.
const STEP_LIMIT: Duration = Duration::from_secs(5);
/// How long a reset by flag may take (Linux).
const RESET_LIMIT: Duration = Duration::from_secs(10);

/// What a slave says.
#[derive(Clone, Copy)]
enum Word {
    Reset = 0,
    /// The address of the command registers, 16 bits at a time.
    Vhcr0 = 1,
    Vhcr1 = 2,
    Vhcr2 = 3,
    Enable = 4,
    Post = 5,
}

/// Bytes of the command registers: a page, as Linux has it.
const REGISTERS: u64 = 4096;
/// Words of them.
const PARAMETER: usize = 0;
const MODIFIER: usize = 1;
const OUTPUT: usize = 2;
const OPERATION: usize = 3;

/// The channel of a function that its master knows.
pub(super) struct Channel<B> {
    registers: B,
    toggle: bool,
}

impl<B: Block> Channel<B> {
    /// Gets into step with the master, resets the function, and tells where its command registers are.
    pub(super) fn open(hw: &impl Hardware<Block = B>) -> Result<Self, Error> {
        let registers = hw.allocate(REGISTERS).ok_or(Error::NoMemory("command registers"))?;
        if hw.doorbell(FLAGS) & OFFLINE != 0 {
            return Err(if hw.doorbell(FLAGS) == u32::MAX { Error::Gone } else { Error::NoMaster });
        }
        if hw.doorbell(ANSWER) & GIVEN_UP != 0 {
            reset_by_flag(hw)?;
        }
        let in_step = look(hw, STEP_LIMIT, Error::NoMaster, || {
            let (said, answer) = (hw.doorbell(SAID), hw.doorbell(ANSWER));
            match (said, answer) {
                (u32::MAX, _) | (_, u32::MAX) => Err(Error::Gone),
                _ if (said ^ answer) & TOGGLE == 0 => Ok(Some(said & TOGGLE != 0)),
                _ => Ok(None),
            }
        });
        let toggle = match in_step {
            Err(Error::NoMaster) => {
                hw.ring(ANSWER, 0);
                hw.ring(SAID, 0);
                false
            }
            known => known?,
        };
        let mut channel = Self { registers, toggle };
        if channel.say(hw, Word::Reset, 0, Error::NoMaster)? >> 8 & 0xff != REVISION {
            return Err(Error::Lacks("a channel of revision 1"));
        }
        let addr = channel.registers.addr().0;
        for (word, shift) in [(Word::Vhcr0, 48), (Word::Vhcr1, 32), (Word::Vhcr2, 16), (Word::Enable, 0)] {
            channel.say(hw, word, (addr >> shift) as u16, Error::NoMaster)?;
        }
        Ok(channel)
    }

    /// Says a word; gives the master's answer.
    fn say(&mut self, hw: &impl Hardware, word: Word, parameter: u16, late: Error) -> Result<u32, Error> {
        self.toggle = !self.toggle;
        let toggle = if self.toggle { TOGGLE } else { 0 };
        hw.ring(SAID, toggle | (word as u32) << 16 | u32::from(parameter));
        look(hw, TIME_LIMIT, late, || match hw.doorbell(ANSWER) {
            u32::MAX => Err(Error::Gone),
            answer if answer & TOGGLE != toggle => Ok(None),
            answer if answer & GIVEN_UP != 0 => Err(Error::GivenUp),
            answer => Ok(Some(answer & !TOGGLE)),
        })
    }

    /// Gives a command and waits for its end.
    pub(super) fn execute(
        &mut self,
        hw: &impl Hardware,
        command: Command,
        output: u64,
    ) -> Result<Ended, Error> {
        let token = u64::from(POLL_TOKEN) << 48 | u64::from(command.operation());
        for (at, value) in [
            (PARAMETER, command.parameter),
            (MODIFIER, u64::from(command.modifier) << 32),
            (OUTPUT, output),
            (OPERATION, token),
        ] {
            if let Some(word) = self.registers.get(at) {
                word.store(value.to_be(), Ordering::Relaxed);
            }
        }
        fence(Ordering::Release);
        self.say(hw, Word::Post, 0, Error::CommandTimeout(command.opcode))?;
        fence(Ordering::Acquire);
        let word = |at: usize| self.registers.get(at).map_or(0, |w| u64::from_be(w.load(Ordering::Relaxed)));
        Ok(Ended { code: (word(OPERATION) >> 24) as u8, output: word(OUTPUT) })
    }

    /// Has the master take all that the function has.
    pub(super) fn close(&mut self, hw: &impl Hardware) -> Result<(), Error> {
        self.say(hw, Word::Reset, 0, Error::NoMaster).map(drop)
    }
}

/// Why the master is no longer there for the function, if so.
pub(crate) fn trouble(hw: &impl Hardware) -> Option<Error> {
    match hw.doorbell(ANSWER) {
        u32::MAX => Some(Error::Gone),
        answer if answer & GIVEN_UP != 0 => Some(Error::GivenUp),
        _ => None,
    }
}

/// Resets a function that is not in step with its master, where the card can.
pub(crate) fn reset_by_flag(hw: &impl Hardware) -> Result<(), Error> {
    match hw.doorbell(CAPABILITIES) {
        u32::MAX => return Err(Error::Gone),
        capabilities if capabilities & RESETS == 0 => return Ok(()),
        _ => hw.ring(FLAGS, !hw.doorbell(FLAGS) & RESET),
    }
    look(hw, RESET_LIMIT, Error::ResetTimeout, || match hw.doorbell(FLAGS) {
        u32::MAX => Err(Error::Gone),
        // Done when both flags are alike, as often as it is wanted anew.
        flags => Ok(((flags & RESET != 0) == (flags & RESET_DONE != 0)).then_some(())),
    })
}
