//! The channel between a virtual function and its master, the driver of the physical function: requests of
//! one word each, acknowledged by a toggle bit, and command registers that lie in memory (vHCR; Linux
//! `mlx4/cmd.c`).

use crate::command::request::{Command, CommandResult, POLL_TOKEN, TIME_LIMIT, poll_until};
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;

/// Registers in BAR 2: the slave's request, the master's reply, the channel's capabilities, and flags.
const SLAVE_WRITE: u64 = 0x0;
const SLAVE_READ: u64 = 0x4;
const CAPABILITIES: u64 = 0x8;
const FLAGS: u64 = 0xc;

const TOGGLE: u32 = 1 << 31;
/// Bit of a reply: the master has released everything that the slave had, which must start again.
const GIVEN_UP: u32 = 1 << 17;
/// Bit of the capabilities: a flag resets the function.
const RESETS: u32 = 1 << 30;
/// Bits of the flags: a reset is requested, a reset is complete, and there is no master.
const RESET: u32 = 1 << 16;
const RESET_DONE: u32 = 1 << 8;
const OFFLINE: u32 = 1 << 9;
/// The revision of the channel, in the reply to a reset.
const REVISION: u32 = 1;

/// The maximum time in which the two toggle bits may differ: the master is present, but has not noticed the
/// function yet.
const STEP_LIMIT: Duration = Duration::from_secs(5);
/// The maximum time of a reset by flag (Linux).
const RESET_LIMIT: Duration = Duration::from_secs(10);

/// A request of a virtual function to its master.
#[derive(Clone, Copy)]
enum Request {
    Reset = 0,
    /// The address of the command registers, 16 bits at a time.
    Vhcr0 = 1,
    Vhcr1 = 2,
    Vhcr2 = 3,
    Enable = 4,
    Post = 5,
}

/// The size of the command registers, in bytes: a page, as in Linux.
const REGISTERS: u64 = 4096;
/// The 64-bit words of the command registers.
const PARAMETER: usize = 0;
const MODIFIER: usize = 1;
const OUTPUT: usize = 2;
const OPERATION: usize = 3;

/// The command channel of a virtual function to its master, once the master knows the function.
pub(crate) struct Channel<B> {
    registers: B,
    toggle: bool,
}

impl<B: Block> Channel<B> {
    /// Synchronises with the master, resets the function, and passes the address of its command registers.
    pub(crate) fn open(hw: &impl Hardware<Block = B>) -> Result<Self, Error> {
        let registers = hw.allocate(REGISTERS).ok_or(Error::NoMemory("command registers"))?;
        if hw.doorbell(FLAGS) & OFFLINE != 0 {
            return Err(if hw.doorbell(FLAGS) == u32::MAX { Error::Gone } else { Error::NoMaster });
        }
        if hw.doorbell(SLAVE_READ) & GIVEN_UP != 0 {
            reset_by_flag(hw)?;
        }
        let in_step = poll_until(hw, STEP_LIMIT, Error::NoMaster, || {
            let (said, answer) = (hw.doorbell(SLAVE_WRITE), hw.doorbell(SLAVE_READ));
            match (said, answer) {
                (u32::MAX, _) | (_, u32::MAX) => Err(Error::Gone),
                _ if (said ^ answer) & TOGGLE == 0 => Ok(Some(said & TOGGLE != 0)),
                _ => Ok(None),
            }
        });
        let toggle = match in_step {
            Err(Error::NoMaster) => {
                hw.ring(SLAVE_READ, 0);
                hw.ring(SLAVE_WRITE, 0);
                false
            }
            known => known?,
        };
        let mut channel = Self { registers, toggle };
        if channel.send(hw, Request::Reset, 0, Error::NoMaster)? >> 8 & 0xff != REVISION {
            return Err(Error::Lacks("a channel of revision 1"));
        }
        let addr = channel.registers.addr().0;
        for (word, shift) in
            [(Request::Vhcr0, 48), (Request::Vhcr1, 32), (Request::Vhcr2, 16), (Request::Enable, 0)]
        {
            channel.send(hw, word, (addr >> shift) as u16, Error::NoMaster)?;
        }
        Ok(channel)
    }

    /// Sends a request and returns the master's reply. Fails with `late` if there is none in time.
    fn send(&mut self, hw: &impl Hardware, word: Request, parameter: u16, late: Error) -> Result<u32, Error> {
        self.toggle = !self.toggle;
        let toggle = if self.toggle { TOGGLE } else { 0 };
        hw.ring(SLAVE_WRITE, toggle | (word as u32) << 16 | u32::from(parameter));
        poll_until(hw, TIME_LIMIT, late, || match hw.doorbell(SLAVE_READ) {
            u32::MAX => Err(Error::Gone),
            answer if answer & TOGGLE != toggle => Ok(None),
            answer if answer & GIVEN_UP != 0 => Err(Error::GivenUp),
            answer => Ok(Some(answer & !TOGGLE)),
        })
    }

    /// Executes a command.
    pub(crate) fn execute(
        &mut self,
        hw: &impl Hardware,
        command: Command,
        output: u64,
    ) -> Result<CommandResult, Error> {
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
        self.send(hw, Request::Post, 0, Error::CommandTimeout(command.opcode))?;
        fence(Ordering::Acquire);
        let word = |at: usize| self.registers.get(at).map_or(0, |w| u64::from_be(w.load(Ordering::Relaxed)));
        Ok(CommandResult { code: (word(OPERATION) >> 24) as u8, output: word(OUTPUT) })
    }

    /// Makes the master release every resource of this function.
    pub(crate) fn close(&mut self, hw: &impl Hardware) -> Result<(), Error> {
        self.send(hw, Request::Reset, 0, Error::NoMaster).map(drop)
    }
}

/// Returns the reason for which the master no longer serves the function, if there is one.
pub(crate) fn channel_error(hw: &impl Hardware) -> Option<Error> {
    match hw.doorbell(SLAVE_READ) {
        u32::MAX => Some(Error::Gone),
        answer if answer & GIVEN_UP != 0 => Some(Error::GivenUp),
        _ => None,
    }
}

/// Resets a function that is not synchronised with its master, if the card supports that.
pub(crate) fn reset_by_flag(hw: &impl Hardware) -> Result<(), Error> {
    match hw.doorbell(CAPABILITIES) {
        u32::MAX => return Err(Error::Gone),
        capabilities if capabilities & RESETS == 0 => return Ok(()),
        _ => hw.ring(FLAGS, !hw.doorbell(FLAGS) & RESET),
    }
    poll_until(hw, RESET_LIMIT, Error::ResetTimeout, || match hw.doorbell(FLAGS) {
        u32::MAX => Err(Error::Gone),
        // The reset is complete when both flags are equal; each request toggles the first.
        flags => Ok(((flags & RESET != 0) == (flags & RESET_DONE != 0)).then_some(())),
    })
}
