//! Registers and commands.

use super::{IN_BOX, Node, OUT_BOX};

/// The offset of the command registers in BAR 0.
const HCR: u64 = 0x80680;

impl Node {
    pub fn write_register(&mut self, offset: u64, value: u32) {
        self.card.write_bar0(offset, &value.to_be_bytes(), &self.machine);
    }

    pub(super) fn read_register(&mut self, offset: u64) -> u32 {
        let mut word = [0; 4];
        self.card.read_bar0(offset, &mut word, &self.machine);
        u32::from_be_bytes(word)
    }

    /// Runs a command with immediate input. Returns its status and immediate output.
    pub fn raw_command(&mut self, opcode: u32, op_mod: u32, in_mod: u32, in_param: u64) -> (u8, u64) {
        if self.slave {
            return self.slave_command(opcode, op_mod, in_mod, in_param);
        }
        self.hcr([in_param, u64::from(in_mod), OUT_BOX, u64::from(op_mod << 12 | opcode)])
    }

    /// Runs a command by its registers: input parameter, input modifier, output parameter, opcode with its
    /// modifier.
    pub fn hcr(&mut self, [in_param, in_mod, out_param, opcode]: [u64; 4]) -> (u8, u64) {
        self.toggle = !self.toggle;
        let words = [
            (in_param >> 32) as u32,
            in_param as u32,
            in_mod as u32,
            (out_param >> 32) as u32,
            out_param as u32,
            0xffff_0000,
            1 << 23 | u32::from(self.toggle) << 21 | opcode as u32,
        ];
        for (i, word) in words.into_iter().enumerate() {
            self.write_register(HCR + 4 * i as u64, word);
        }
        let control = self.read_register(HCR + 0x18);
        assert_eq!(control >> 21 & 1 != 0, self.toggle);
        assert_eq!(control >> 23 & 1, 0, "GO falls");
        let out = u64::from(self.read_register(HCR + 0xc)) << 32 | u64::from(self.read_register(HCR + 0x10));
        ((control >> 24) as u8, out)
    }

    /// Runs a command with a mailbox. Returns its status.
    pub fn try_command(&mut self, opcode: u32, op_mod: u32, in_mod: u32, mailbox: &[(usize, u32)]) -> u8 {
        self.machine.put(IN_BOX, &[0; 4096]);
        for &(offset, word) in mailbox {
            self.machine.put(IN_BOX + offset as u64, &word.to_be_bytes());
        }
        self.raw_command(opcode, op_mod, in_mod, IN_BOX).0
    }

    pub fn command(&mut self, opcode: u32, op_mod: u32, in_mod: u32, mailbox: &[(usize, u32)]) {
        let status = self.try_command(opcode, op_mod, in_mod, mailbox);
        assert_eq!(status, 0, "command {opcode:#x} failed");
    }

    /// Returns the word of the output mailbox at an offset.
    pub fn output(&self, offset: u64) -> u32 {
        self.machine.be32(OUT_BOX + offset)
    }
}
