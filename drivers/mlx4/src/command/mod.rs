//! Commands, executed one at a time and polled for completion. They go through the card's registers, or
//! through a virtual function's channel to its master.

mod opcode;
mod registers;
pub(crate) mod request;

pub use opcode::{Opcode, Status};
pub(crate) use request::Command;

use crate::bus;
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::mailbox::{MAILBOX, Mailbox};
use crate::vf::channel::Channel;
use core::sync::atomic::{Ordering, fence};
use registers::Registers;
use request::CommandResult;

/// The path of commands to the card.
enum Transport<B> {
    Registers(Registers),
    Channel(Channel<B>),
}

/// The state of a card's command interface: its transport, and a mailbox for each direction.
pub(crate) struct CommandState<B> {
    transport: Transport<B>,
    input: B,
    output: B,
    failed: bool,
}

impl<B: Block> CommandState<B> {
    /// Makes the interface of the physical function of a card that was just reset.
    pub(crate) fn of_physical(hw: &impl Hardware<Block = B>) -> Result<Self, Error> {
        Self::new(hw, Transport::Registers(Registers::new()))
    }

    /// Makes the interface of a virtual function: resets it and announces it to its master.
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
}

/// The command interface of a card in a machine.
pub(crate) struct Commands<'a, H: Hardware> {
    pub(crate) hw: &'a H,
    state: &'a mut CommandState<H::Block>,
}

impl<'a, H: Hardware> Commands<'a, H> {
    /// Makes the interface from its state and the machine.
    pub(crate) const fn new(hw: &'a H, state: &'a mut CommandState<H::Block>) -> Self {
        Self { hw, state }
    }

    /// Makes the master release everything that a virtual function has.
    pub(crate) fn leave(&mut self) -> Result<(), Error> {
        match &mut self.state.transport {
            _ if self.state.failed => Err(Error::Failed),
            Transport::Channel(channel) => channel.close(self.hw),
            Transport::Registers(_) => Ok(()),
        }
    }

    /// Executes a command without mailboxes, and returns its immediate output.
    pub(crate) fn exec(&mut self, command: Command) -> Result<u64, Error> {
        self.execute(command, 0)
    }

    /// Executes a command with an input mailbox.
    pub(crate) fn exec_in(&mut self, command: Command, mailbox: &Mailbox) -> Result<(), Error> {
        self.exec_in_imm(command, mailbox).map(drop)
    }

    /// Executes a command that has an output mailbox, and returns that mailbox.
    pub(crate) fn exec_out(&mut self, command: Command) -> Result<Mailbox, Error> {
        self.execute(command, self.state.output.addr().0)?;
        Ok(Mailbox::from_words(self.state.output.iter().map(|word| word.load(Ordering::Relaxed))))
    }

    /// Executes a command with an input mailbox, and returns its immediate output.
    pub(crate) fn exec_in_imm(&mut self, command: Command, mailbox: &Mailbox) -> Result<u64, Error> {
        let parameter = self.store_input(mailbox.words());
        self.execute(command.immediate(parameter), 0)
    }

    /// Executes a command with both mailboxes. `input` and `output` are their first words. Does not allocate.
    pub(crate) fn exec_in_out(
        &mut self,
        command: Command,
        input: &[u64],
        output: &mut [u64],
    ) -> Result<(), Error> {
        let parameter = self.store_input(input.iter().copied());
        self.execute(command.immediate(parameter), self.state.output.addr().0)?;
        for (target, word) in output.iter_mut().zip(self.state.output.iter()) {
            *target = word.load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes the first words of the input mailbox, and returns the mailbox's address.
    fn store_input(&self, words: impl Iterator<Item = u64>) -> u64 {
        for (target, word) in self.state.input.iter().zip(words) {
            target.store(word, Ordering::Relaxed);
        }
        self.state.input.addr().0
    }

    /// Executes a command. A card that does not complete it has failed, and is cut off from memory at once,
    /// because the caller frees memory that the command has made known to the card.
    fn execute(&mut self, command: Command, output: u64) -> Result<u64, Error> {
        if self.state.failed {
            return Err(Error::Failed);
        }
        fence(Ordering::Release);
        let result = match &mut self.state.transport {
            Transport::Registers(registers) => registers.execute(self.hw, command, output),
            Transport::Channel(channel) => channel.execute(self.hw, command, output),
        };
        fence(Ordering::Acquire);
        let CommandResult { code, output } = result.inspect_err(|_| {
            self.state.failed = true;
            bus::cut_off(self.hw);
        })?;
        if let Some(status) = Status::from_code(code) {
            let Command { opcode, modifier, .. } = command;
            log::debug!("mlx4: {opcode:?} {modifier:#x}: {status}");
            return Err(Error::Refused { command: opcode, status });
        }
        Ok(output)
    }
}
