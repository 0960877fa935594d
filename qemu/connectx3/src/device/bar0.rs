//! BAR 0: the command registers, ownership, reset, and the registers whose offsets QUERY_FW reports.

use super::clock;
use super::hcr::{Command, HCR, HCR_END, Hcr};
use super::observe::Register;
use platform::Instant;

/// The length of BAR 0, in bytes.
pub const BAR0_LEN: u64 = 1 << 20;
/// The ownership semaphore; a driver that reads 0 has acquired the card.
const OWNERSHIP: u64 = 0x8069c;
/// The reset register; writing 1 resets the card.
const RESET: u64 = 0xf0010;
/// The register that the handler of INTx writes.
pub(super) const CLEAR_INTERRUPT: u64 = 0xf00d8;
/// The 64-bit clock. It has a page of its own, which drivers map into programs.
pub(super) const CLOCK: u64 = 0xfe000;
const CLOCK_LOW: u64 = CLOCK + 4;
/// The error buffer, which is all zero until the card fails.
pub(super) const ERROR_BUFFER: u64 = 0x1f000;
/// The number of 32-bit words in the error buffer.
pub(super) const ERROR_BUFFER_WORDS: u32 = 16;

/// The state of the registers.
#[derive(Default)]
pub(super) struct Bar0 {
    /// True while a driver holds the ownership semaphore.
    owned: bool,
    /// The command registers.
    pub hcr: Hcr,
}

/// The effect of a register write on the rest of the card.
pub(super) enum Effect {
    /// The write has issued a command.
    Command(Command),
    /// The write has an effect that is named in traces.
    Register(Register),
    /// The write has no further effect.
    None,
}

impl Bar0 {
    /// Reads an aligned 32-bit register of a card that works. The value is the register's big-endian number.
    pub(super) fn read(&mut self, offset: u64, now: Instant) -> u32 {
        match offset {
            CLOCK => (clock::cycles(now) >> 32) as u32,
            CLOCK_LOW => clock::cycles(now) as u32,
            HCR..HCR_END => self.hcr.read(offset - HCR),
            OWNERSHIP => u32::from(std::mem::replace(&mut self.owned, true)),
            // The semaphore for resets is always free.
            _ => 0,
        }
    }

    /// Writes an aligned 32-bit register.
    pub(super) fn write(&mut self, offset: u64, value: u32) -> Effect {
        const CLEAR_INTERRUPT_END: u64 = CLEAR_INTERRUPT + 8;
        match offset {
            HCR..HCR_END => self.hcr.write(offset - HCR, value).map_or(Effect::None, Effect::Command),
            OWNERSHIP if value == 0 => {
                self.owned = false;
                Effect::Register(Register::ReleaseOwnership)
            }
            RESET if value & 1 != 0 => Effect::Register(Register::Reset),
            CLEAR_INTERRUPT..CLEAR_INTERRUPT_END => Effect::Register(Register::ClearInterrupt),
            _ => {
                log::debug!("write of {value:#x} to register {offset:#x}, which has no effect");
                Effect::None
            }
        }
    }
}
