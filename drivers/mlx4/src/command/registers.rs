//! The command registers of a physical function (HCR).

use super::request::{Command, CommandResult, POLL_TOKEN, TIME_LIMIT, poll_until};
use crate::error::Error;
use crate::hardware::Hardware;

/// The register block in BAR 0: input parameter, modifier, output parameter, token, and control (PRM
/// `hca_command_register`).
const HCR: u32 = 0x80680;
const OUT_PARAM: u32 = HCR + 0x0c;
const CONTROL: u32 = HCR + 0x18;
const GO: u32 = 1 << 23;
const TOGGLE: u32 = 1 << 21;

/// The state of the registers between commands.
pub(super) struct Registers {
    toggle: bool,
}

impl Registers {
    /// Makes the registers' state after a reset of the card.
    pub(super) const fn new() -> Self {
        Self { toggle: true }
    }

    /// Executes a command.
    pub(super) fn execute(
        &mut self,
        hw: &impl Hardware,
        command: Command,
        output: u64,
    ) -> Result<CommandResult, Error> {
        let Command { modifier, parameter, .. } = command;
        let toggle = if self.toggle { TOGGLE } else { 0 };
        let words = [
            (parameter >> 32) as u32,
            parameter as u32,
            modifier,
            (output >> 32) as u32,
            output as u32,
            u32::from(POLL_TOKEN) << 16,
        ];
        for (offset, word) in (HCR..).step_by(4).zip(words) {
            hw.set_register(offset, word);
        }
        hw.set_register(CONTROL, GO | toggle | u32::from(command.operation()));
        self.toggle = !self.toggle;
        let code = poll_until(hw, TIME_LIMIT, Error::CommandTimeout(command.opcode), || {
            match hw.register(CONTROL) {
                u32::MAX => Err(Error::Gone),
                control if control & GO == 0 && control & TOGGLE == toggle => Ok(Some((control >> 24) as u8)),
                _ => Ok(None),
            }
        })?;
        let output = u64::from(hw.register(OUT_PARAM)) << 32 | u64::from(hw.register(OUT_PARAM + 4));
        Ok(CommandResult { code, output })
    }
}
