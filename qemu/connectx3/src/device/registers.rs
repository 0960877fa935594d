//! BAR 0: the command registers, ownership, reset, and the registers whose offsets QUERY_FW reports.

use super::Card;
use super::clock;
use super::hcr::{HCR, HCR_END};
use super::host::Host;
use super::observe::{Observation, Register};

/// The length of BAR 0, in bytes.
pub const BAR0_LEN: u64 = 1 << 20;
/// The ownership semaphore; a driver that reads 0 has acquired the card.
const OWNERSHIP: u64 = 0x8069c;
/// The reset register; writing 1 resets the card.
const RESET: u64 = 0xf0010;
/// The register that the handler of INTx writes.
pub const CLEAR_INTERRUPT: u64 = 0xf00d8;
/// The 64-bit clock. It has a page of its own, which drivers map into programs.
pub const CLOCK: u64 = 0xfe000;
const CLOCK_LOW: u64 = CLOCK + 4;
/// The error buffer, which is all zero until the card fails.
pub const ERROR_BUFFER: u64 = 0x1f000;
/// The number of 32-bit words in the error buffer.
pub const ERROR_BUFFER_WORDS: u32 = 16;

impl Card {
    /// Reads an aligned 32-bit register. The value is the register's big-endian number.
    pub(super) fn read_register(&mut self, offset: u64, host: &dyn Host) -> u32 {
        match offset {
            CLOCK => (clock::cycles(host.now()) >> 32) as u32,
            CLOCK_LOW => clock::cycles(host.now()) as u32,
            HCR..HCR_END => self.hcr.read(offset - HCR),
            OWNERSHIP => u32::from(std::mem::replace(&mut self.owned, true)),
            // The semaphore for resets is always free.
            _ => self.error_word(offset).unwrap_or(0),
        }
    }

    /// Writes an aligned 32-bit register.
    pub(super) fn write_register(&mut self, offset: u64, value: u32, host: &dyn Host) {
        const CLEAR_INTERRUPT_END: u64 = CLEAR_INTERRUPT + 8;
        match offset {
            HCR..HCR_END => {
                if let Some(command) = self.hcr.write(offset - HCR, value).filter(|_| !self.is_broken()) {
                    self.execute(&command, host);
                }
            }
            OWNERSHIP if value == 0 => {
                host.observe(&Observation::Register(Register::ReleaseOwnership));
                self.owned = false;
            }
            RESET if value & 1 != 0 => {
                host.observe(&Observation::Register(Register::Reset));
                self.reset(host);
                self.reset_until = host.now() + self.profile.reset_time;
            }
            CLEAR_INTERRUPT..CLEAR_INTERRUPT_END => {
                host.observe(&Observation::Register(Register::ClearInterrupt));
                host.set_intx(false);
            }
            _ => log::debug!("write of {value:#x} to register {offset:#x}, which has no effect"),
        }
    }
}
