//! Commands, executed one at a time and polled for completion. They go through the card's registers, or
//! through a virtual function's channel to its master.

mod channel;
mod opcode;
mod registers;

pub(crate) use channel::{channel_error, reset_by_flag};
pub use opcode::{Opcode, Status};

use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::layout::{MAILBOX, Mailbox};
use channel::Channel;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;
use registers::Registers;

/// The maximum time of a command on a card that works: those of Linux's classes complete within milliseconds.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// The number of polls without a pause, and the pause between later ones.
const EAGER_POLLS: u32 = 64;
const PAUSE: Duration = Duration::from_micros(2);
/// The token of a polled command in Linux.
const POLL_TOKEN: u16 = 0xffff;

/// A command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    opcode: Opcode,
    modifier: u32,
    op_modifier: u8,
    parameter: u64,
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

    /// Returns the opcode with its modifier, as both kinds of registers have them.
    const fn operation(self) -> u16 {
        ((self.op_modifier & 0xf) as u16) << 12 | self.opcode as u16
    }
}

/// The completion of a command: its status code and its immediate output.
struct Ended {
    code: u8,
    output: u64,
}

/// The path of commands to the card.
enum Transport<B> {
    Registers(Registers),
    Channel(Channel<B>),
}

/// The sender of commands.
pub(crate) struct Commands<B> {
    transport: Transport<B>,
    input: B,
    output: B,
    failed: bool,
}

impl<B: Block> Commands<B> {
    /// For the physical function of a card that was just reset.
    pub(crate) fn of_physical(hw: &impl Hardware<Block = B>) -> Result<Self, Error> {
        Self::new(hw, Transport::Registers(Registers::new()))
    }

    /// For a virtual function: resets it and announces it to its master.
    pub(crate) fn of_virtual(hw: &impl Hardware<Block = B>) -> Result<Self, Error> {
        Self::new(hw, Transport::Channel(Channel::open(hw)?))
    }

    fn new(hw: &impl Hardware<Block = B>, transport: Transport<B>) -> Result<Self, Error> {
        let mailbox = || hw.allocate(MAILBOX as u64).ok_or(Error::NoMemory("mailboxes"));
        Ok(Self { transport, input: mailbox()?, output: mailbox()?, failed: false })
    }

    /// Returns true if the card has failed, so that no more commands are sent.
    pub(crate) const fn has_failed(&self) -> bool {
        self.failed
    }

    /// Marks the card as failed: no more commands are sent.
    pub(crate) const fn fail(&mut self) {
        self.failed = true;
    }

    /// Makes the master release everything that a virtual function has.
    pub(crate) fn leave(&mut self, hw: &impl Hardware<Block = B>) -> Result<(), Error> {
        match &mut self.transport {
            _ if self.failed => Err(Error::Failed),
            Transport::Channel(channel) => channel.close(hw),
            Transport::Registers(_) => Ok(()),
        }
    }

    /// Executes a command without mailboxes, and returns its immediate output.
    pub(crate) fn exec(&mut self, hw: &impl Hardware<Block = B>, command: Command) -> Result<u64, Error> {
        self.execute(hw, command, 0)
    }

    /// Executes a command with an input mailbox.
    pub(crate) fn exec_in(
        &mut self,
        hw: &impl Hardware<Block = B>,
        command: Command,
        mailbox: &Mailbox,
    ) -> Result<(), Error> {
        self.exec_in_imm(hw, command, mailbox).map(drop)
    }

    /// Executes a command with an output mailbox, and returns that.
    pub(crate) fn exec_out(
        &mut self,
        hw: &impl Hardware<Block = B>,
        command: Command,
    ) -> Result<Mailbox, Error> {
        self.execute(hw, command, self.output.addr().0)?;
        Ok(Mailbox::from_words(self.output.iter().map(|word| word.load(Ordering::Relaxed))))
    }

    /// Executes a command with an input mailbox, and returns its immediate output.
    pub(crate) fn exec_in_imm(
        &mut self,
        hw: &impl Hardware<Block = B>,
        command: Command,
        mailbox: &Mailbox,
    ) -> Result<u64, Error> {
        for (place, word) in self.input.iter().zip(mailbox.words()) {
            place.store(word, Ordering::Relaxed);
        }
        let parameter = self.input.addr().0;
        self.execute(hw, Command { parameter, ..command }, 0)
    }

    /// Executes a command with both mailboxes. `input` and `output` are their first words. Does not allocate.
    pub(crate) fn exec_in_out(
        &mut self,
        hw: &impl Hardware<Block = B>,
        command: Command,
        input: &[u64],
        output: &mut [u64],
    ) -> Result<(), Error> {
        for (place, word) in self.input.iter().zip(input) {
            place.store(*word, Ordering::Relaxed);
        }
        let parameter = self.input.addr().0;
        self.execute(hw, Command { parameter, ..command }, self.output.addr().0)?;
        for (place, word) in output.iter_mut().zip(self.output.iter()) {
            *place = word.load(Ordering::Relaxed);
        }
        Ok(())
    }

    fn execute(&mut self, hw: &impl Hardware, command: Command, output: u64) -> Result<u64, Error> {
        if self.failed {
            return Err(Error::Failed);
        }
        fence(Ordering::Release);
        let ended = match &mut self.transport {
            Transport::Registers(registers) => registers.execute(hw, command, output),
            Transport::Channel(channel) => channel.execute(hw, command, output),
        };
        fence(Ordering::Acquire);
        let Ended { code, output } = ended.inspect_err(|_| self.failed = true)?;
        if let Some(status) = Status::from_code(code) {
            let Command { opcode, modifier, .. } = command;
            log::debug!("mlx4: {opcode:?} {modifier:#x}: {status}");
            return Err(Error::Refused { command: opcode, status });
        }
        Ok(output)
    }
}

/// Calls `at` until it returns a value. Fails with `late` after `limit`.
fn poll_until<T>(
    hw: &impl Hardware,
    limit: Duration,
    late: Error,
    mut at: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let deadline = hw.now() + limit;
    let mut polls = 0;
    loop {
        if let Some(found) = at()? {
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
