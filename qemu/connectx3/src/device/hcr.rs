//! The command register block (HCR, BAR 0 from 0x80680), through which the driver issues a command and sees
//! its completion.

use super::mailbox::Mailbox;

/// The offset of the block in BAR 0.
pub(super) const HCR: u64 = 0x80680;
/// The number of 32-bit words in the block.
const WORDS: usize = 7;
/// The offset of the first byte after the block.
pub(super) const HCR_END: u64 = HCR + 4 * WORDS as u64;

const GO: u32 = 1 << 23;
const EVENT: u32 = 1 << 22;

/// A command as issued by the driver.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Command {
    /// The bus address of the input mailbox, or immediate input.
    pub in_param: u64,
    /// The input modifier.
    pub in_mod: u32,
    /// The bus address of the output mailbox.
    pub out_param: u64,
    /// The value that identifies the command in its event.
    pub token: u16,
    /// The opcode.
    pub opcode: u16,
    /// The opcode's modifier.
    pub op_mod: u8,
    /// True if the driver wants an event when the command ends.
    pub event: bool,
    /// The input mailbox, if the master of a virtual function passes it on. If `None`, the mailbox is at
    /// `in_param`.
    pub input: Option<Mailbox>,
}

/// The error status of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Status {
    /// Internal error.
    #[error("internal error")]
    Internal = 0x01,
    /// The opcode is unknown.
    #[error("bad opcode")]
    BadOpcode = 0x02,
    /// A parameter is invalid.
    #[error("bad parameter")]
    BadParameter = 0x03,
    /// The command is not allowed in this state of the card.
    #[error("bad system state")]
    BadSystemState = 0x04,
    /// The object does not exist.
    #[error("bad resource")]
    BadResource = 0x05,
    /// The object is in use.
    #[error("resource busy")]
    ResourceBusy = 0x06,
    /// The request exceeds a limit.
    #[error("exceeds limit")]
    ExceedsLimit = 0x08,
    /// The command is not allowed in this state of the object.
    #[error("bad resource state")]
    BadResourceState = 0x09,
    /// The index is beyond the end of its table.
    #[error("bad index")]
    BadIndex = 0x0a,
    /// The table's memory is not mapped.
    #[error("ICM error")]
    IcmError = 0x0c,
    /// The queue pair's state does not allow the transition.
    #[error("bad queue pair state")]
    BadQpState = 0x10,
    /// Windows are bound to the region.
    #[error("region bound")]
    RegionBound = 0x21,
    /// The management packet is invalid.
    #[error("bad management packet")]
    BadPacket = 0x30,
    /// The queue's contents do not fit the new size.
    #[error("bad size")]
    BadSize = 0x40,
}

/// The registers.
#[derive(Debug, Default)]
pub(super) struct Hcr {
    words: [u32; WORDS],
}

impl Hcr {
    /// Reads a register. `offset` is relative to the block.
    pub(super) fn read(&self, offset: u64) -> u32 {
        self.words.get(offset as usize / 4).copied().unwrap_or(0)
    }

    /// Writes a register. A write of the last one with GO set issues a command, which is returned.
    pub(super) fn write(&mut self, offset: u64, value: u32) -> Option<Command> {
        let index = offset as usize / 4;
        *self.words.get_mut(index)? = value;
        if index != WORDS - 1 || value & GO == 0 {
            return None;
        }
        let [in_high, in_low, in_mod, out_high, out_low, token, control] = self.words;
        Some(Command {
            in_param: u64::from(in_high) << 32 | u64::from(in_low),
            in_mod,
            out_param: u64::from(out_high) << 32 | u64::from(out_low),
            token: (token >> 16) as u16,
            opcode: (control & 0xfff) as u16,
            op_mod: (control >> 12 & 0xf) as u8,
            event: control & EVENT != 0,
            input: None,
        })
    }

    /// Completes the command: clears GO, keeps the toggle, and writes the status to the top byte. `immediate`
    /// is the output of a command without an output mailbox.
    pub(super) fn finish(&mut self, status: u8, immediate: Option<u64>) {
        let [_, _, _, out_high, out_low, _, control] = &mut self.words;
        if let Some(value) = immediate {
            *out_high = (value >> 32) as u32;
            *out_low = value as u32;
        }
        *control = *control & !GO & 0x00ff_ffff | u32::from(status) << 24;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_given_by_its_last_word_and_keeps_its_toggle() {
        let mut hcr = Hcr::default();
        for (offset, value) in [(0, 1), (4, 0x2000), (8, 7), (0xc, 0), (0x10, 0x3000), (0x14, 0xabcd_0000)] {
            assert_eq!(hcr.write(offset, value), None);
        }
        let command = hcr.write(0x18, 1 << 23 | 1 << 21 | 2 << 12 | 0x004).unwrap();
        assert_eq!((command.in_param, command.in_mod, command.out_param), (0x1_0000_2000, 7, 0x3000));
        assert_eq!((command.token, command.opcode, command.op_mod, command.event), (0xabcd, 4, 2, false));
        hcr.finish(3, Some(0x5_0000_0006));
        assert_eq!(hcr.read(0x18), 3 << 24 | 1 << 21 | 2 << 12 | 4);
        assert_eq!((hcr.read(0xc), hcr.read(0x10)), (5, 6));
    }
}
