//! Commands: the register block by which they are given (HCR), one at a time, and polled for.

mod opcode;

pub use opcode::{Opcode, Status};

use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::layout::{MAILBOX, Mailbox};
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;

/// The register block in BAR 0: input parameter, modifier, output parameter, token, and control (PRM
/// `hca_command_register`).
const HCR: u32 = 0x80680;
const OUT_PARAM: u32 = HCR + 0x0c;
const CONTROL: u32 = HCR + 0x18;
const GO: u32 = 1 << 23;
const TOGGLE: u32 = 1 << 21;
/// What Linux names a command that is polled for.
const POLL_TOKEN: u32 = 0xffff << 16;

/// No command of a card that works takes longer: those of Linux's classes end within milliseconds.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Looks at the register without a pause between them, then with one.
const EAGER_LOOKS: u32 = 64;
const PAUSE: Duration = Duration::from_micros(2);

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
}

/// Gives commands to a card.
pub(crate) struct Commands<B> {
    toggle: bool,
    input: B,
    output: B,
    failed: bool,
}

impl<B: Block> Commands<B> {
    /// For a card that was just reset.
    pub(crate) fn new(hw: &impl Hardware<Block = B>) -> Result<Self, Error> {
        let mailbox = || hw.allocate(MAILBOX as u64).ok_or(Error::NoMemory("mailboxes"));
        Ok(Self { toggle: true, input: mailbox()?, output: mailbox()?, failed: false })
    }

    /// Whether a command has not ended, so that no more are given.
    pub(crate) const fn has_failed(&self) -> bool {
        self.failed
    }

    /// Gives no more commands: the card has failed.
    pub(crate) const fn fail(&mut self) {
        self.failed = true;
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
        for (place, word) in self.input.iter().zip(mailbox.words()) {
            place.store(word, Ordering::Relaxed);
        }
        let parameter = self.input.addr().0;
        self.execute(hw, Command { parameter, ..command }, 0).map(drop)
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

    fn execute(&mut self, hw: &impl Hardware, command: Command, output: u64) -> Result<u64, Error> {
        if self.failed {
            return Err(Error::Failed);
        }
        let Command { opcode, modifier, op_modifier, parameter } = command;
        let toggle = if self.toggle { TOGGLE } else { 0 };
        let control = GO | toggle | u32::from(op_modifier & 0xf) << 12 | opcode as u32;
        let words = [
            (parameter >> 32) as u32,
            parameter as u32,
            modifier,
            (output >> 32) as u32,
            output as u32,
            POLL_TOKEN,
        ];
        fence(Ordering::Release);
        for (offset, word) in (HCR..).step_by(4).zip(words) {
            hw.set_register(offset, word);
        }
        hw.set_register(CONTROL, control);
        self.toggle = !self.toggle;
        let code = match self.wait(hw, opcode, toggle) {
            Ok(code) => code,
            Err(error) => {
                self.failed = true;
                return Err(error);
            }
        };
        fence(Ordering::Acquire);
        if let Some(status) = Status::from_code(code) {
            log::debug!("mlx4: {opcode:?} {modifier:#x}: {status}");
            return Err(Error::Refused { command: opcode, status });
        }
        Ok(u64::from(hw.register(OUT_PARAM)) << 32 | u64::from(hw.register(OUT_PARAM + 4)))
    }

    /// Waits for a command's end; gives its status code.
    fn wait(&self, hw: &impl Hardware, opcode: Opcode, toggle: u32) -> Result<u8, Error> {
        let deadline = hw.now() + TIME_LIMIT;
        let mut looks = 0;
        loop {
            let control = hw.register(CONTROL);
            if control == u32::MAX {
                return Err(Error::Gone);
            }
            if control & GO == 0 && control & TOGGLE == toggle {
                return Ok((control >> 24) as u8);
            }
            if hw.now() >= deadline {
                return Err(Error::CommandTimeout(opcode));
            }
            looks += 1;
            if looks > EAGER_LOOKS {
                hw.wait(PAUSE);
            }
        }
    }
}
