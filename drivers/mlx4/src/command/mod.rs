//! Commands, one at a time, and polled for: by the card's registers, or over a virtual function's channel to its master.

mod channel;
mod opcode;
mod registers;

pub(crate) use channel::{reset_by_flag, trouble};
pub use opcode::{Opcode, Status};

use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::layout::{MAILBOX, Mailbox};
use channel::Channel;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;
use registers::Registers;

/// No command of a card that works takes longer: those of Linux's classes end within milliseconds.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Looks at a register without a pause between them, then with one.
const EAGER_LOOKS: u32 = 64;
const PAUSE: Duration = Duration::from_micros(2);
/// What Linux names a command that is polled for.
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
    /// One with all parameters zero.
    pub(crate) const fn new(opcode: Opcode) -> Self {
        Self { opcode, modifier: 0, op_modifier: 0, parameter: 0 }
    }
    /// With an input modifier: which object it is about.
    pub(crate) const fn of(self, modifier: u32) -> Self {
        Self { modifier, ..self }
    }
    /// With a modifier of its opcode, below 16.
    pub(crate) const fn variant(self, op_modifier: u8) -> Self {
        Self { op_modifier, ..self }
    }
    /// With an input that is no mailbox.
    pub(crate) const fn immediate(self, parameter: u64) -> Self {
        Self { parameter, ..self }
    }

    /// The opcode with its modifier, as both kinds of registers have them.
    const fn operation(self) -> u16 {
        ((self.op_modifier & 0xf) as u16) << 12 | self.opcode as u16
    }
}

/// How a command ended: its status code, and its immediate output.
struct Ended {
    code: u8,
    output: u64,
}

/// By what commands are given.
enum Given<B> {
    Registers(Registers),
    Channel(Channel<B>),
}

/// Gives commands to a card.
pub(crate) struct Commands<B> {
    given: Given<B>,
    input: B,
    output: B,
    failed: bool,
}

impl<B: Block> Commands<B> {
    /// For the physical function of a card that was just reset.
    pub(crate) fn of_card(hw: &impl Hardware<Block = B>) -> Result<Self, Error> {
        Self::new(hw, Given::Registers(Registers::new()))
    }

    /// For a virtual function: resets it and makes it known to its master.
    pub(crate) fn of_slave(hw: &impl Hardware<Block = B>) -> Result<Self, Error> {
        Self::new(hw, Given::Channel(Channel::open(hw)?))
    }

    fn new(hw: &impl Hardware<Block = B>, given: Given<B>) -> Result<Self, Error> {
        let mailbox = || hw.allocate(MAILBOX as u64).ok_or(Error::NoMemory("mailboxes"));
        Ok(Self { given, input: mailbox()?, output: mailbox()?, failed: false })
    }

    /// Whether a command has not ended, so that no more are given.
    pub(crate) const fn has_failed(&self) -> bool {
        self.failed
    }

    /// Gives no more commands: the card has failed.
    pub(crate) const fn fail(&mut self) {
        self.failed = true;
    }

    /// Has the master take all from a virtual function.
    pub(crate) fn leave(&mut self, hw: &impl Hardware<Block = B>) -> Result<(), Error> {
        match &mut self.given {
            _ if self.failed => Err(Error::Failed),
            Given::Channel(channel) => channel.close(hw),
            Given::Registers(_) => Ok(()),
        }
    }

    /// A command without mailboxes; gives its immediate output.
    pub(crate) fn run(&mut self, hw: &impl Hardware<Block = B>, command: Command) -> Result<u64, Error> {
        self.execute(hw, command, 0)
    }

    /// A command with an input mailbox.
    pub(crate) fn send(
        &mut self,
        hw: &impl Hardware<Block = B>,
        command: Command,
        mailbox: &Mailbox,
    ) -> Result<(), Error> {
        self.send_for(hw, command, mailbox).map(drop)
    }

    /// A command with an output mailbox.
    pub(crate) fn query(
        &mut self,
        hw: &impl Hardware<Block = B>,
        command: Command,
    ) -> Result<Mailbox, Error> {
        self.execute(hw, command, self.output.addr().0)?;
        Ok(Mailbox::from_words(self.output.iter().map(|word| word.load(Ordering::Relaxed))))
    }

    /// A command with an input mailbox; gives its immediate output.
    pub(crate) fn send_for(
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

    /// A command with both mailboxes, of which `input` and `output` are the beginnings. It takes nothing from the heap.
    pub(crate) fn converse(
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
        let ended = match &mut self.given {
            Given::Registers(registers) => registers.execute(hw, command, output),
            Given::Channel(channel) => channel.execute(hw, command, output),
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

/// Looks at a register until it says what is wanted, or `limit` has passed: then `late`.
fn look<T>(
    hw: &impl Hardware,
    limit: Duration,
    late: Error,
    mut at: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let deadline = hw.now() + limit;
    let mut looks = 0;
    loop {
        if let Some(found) = at()? {
            return Ok(found);
        }
        if hw.now() >= deadline {
            return Err(late);
        }
        looks += 1;
        if looks > EAGER_LOOKS {
            hw.wait(PAUSE);
        }
    }
}
