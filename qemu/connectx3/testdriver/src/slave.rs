//! The minimal driver on a virtual function: commands go through the communication channel, and numbers come
//! from the master.

use super::driver::{IN_BOX, KEY, Node, OUT_BOX, PD};

/// The address of the slave's command registers.
const VHCR: u64 = 0x5000;
/// Kinds of resources.
pub const QP: u32 = 0;
pub const CQ: u32 = 1;
pub const MPT: u32 = 4;
pub const MTT: u32 = 5;
pub const MAC: u32 = 6;
/// Steps of an allocation.
pub const RESERVE: u32 = 0;
pub const RESERVE_AND_MAP: u32 = 1;
pub const MAP: u32 = 2;

/// The result of [`Node::slave_command`] if the master has not run the command.
pub const NOT_RUN: u8 = 0xff;
/// The low half of a channel word that tells the slave to reset itself.
pub const INTERNAL_ERROR: u32 = 1 << 17;

impl Node {
    pub fn channel(&mut self, offset: u64) -> u32 {
        let mut word = [0; 4];
        self.card.read_bar2(offset, &mut word);
        u32::from_be_bytes(word)
    }

    /// Sends the master a word and returns its answer without the toggle.
    pub fn say(&mut self, command: u32, parameter: u32) -> u32 {
        self.speak(command, parameter).expect("the master answers")
    }

    /// Sends the master a word. Returns `None` if the slave is out of step with its master and gets no
    /// answer.
    pub fn speak(&mut self, command: u32, parameter: u32) -> Option<u32> {
        self.toggle = !self.toggle;
        let word = u32::from(self.toggle) << 31 | command << 16 | parameter & 0xffff;
        self.write_channel(0, word);
        let answer = self.channel(4);
        (answer >> 31 != 0).eq(&self.toggle).then_some(answer & 0x7fff_ffff)
    }

    pub fn write_channel(&mut self, offset: u64, word: u32) {
        self.card.write_bar2(offset, &word.to_be_bytes(), &self.machine);
    }

    /// Gets into step with the master, and resets the slave.
    pub fn fall_in(&mut self) {
        self.write_channel(4, 0);
        self.write_channel(0, 0);
        self.toggle = false;
    }

    /// Resets the slave and tells the master the address of its registers.
    pub fn enable_slave(&mut self) {
        assert_eq!(self.say(0, 0), 0x101, "the interface's revision and version");
        for (command, parameter) in [(1, VHCR >> 48), (2, VHCR >> 32), (3, VHCR >> 16), (4, VHCR)] {
            assert_eq!(self.say(command, parameter as u32), 0);
        }
    }

    pub(crate) fn bring_up_slave(&mut self) {
        self.enable_slave();
        let (status, index) = self.allocate(MAC | 1 << 8, RESERVE_AND_MAP, {
            let [a, b, c, d, e, f] = self.mac.0;
            u64::from_be_bytes([0, 0, a, b, c, d, e, f])
        });
        assert_eq!((status, index), (0, 0));
        assert_eq!(self.allocate(MPT, RESERVE, 0), (0, KEY >> 8));
        assert_eq!(self.allocate(MPT, MAP, u64::from(KEY >> 8)).0, 0);
        let index = KEY >> 8;
        self.command(
            0x00d,
            0,
            index,
            &[(0x00, 0x0002_7f00), (0x08, index), (0x0c, PD), (0x18, u32::MAX), (0x1c, u32::MAX)],
        );
        let gid = self.gid_table();
        self.command(0x00c, 1, 0x501, &gid[..4]);
        self.command(0x009, 0, 1, &[]);
    }

    /// Runs a command through the slave's registers. Returns its status and immediate output.
    pub fn slave_command(&mut self, opcode: u32, op_mod: u32, in_mod: u32, in_param: u64) -> (u8, u64) {
        let mut registers = [0; 32];
        registers[..8].copy_from_slice(&in_param.to_be_bytes());
        registers[8..12].copy_from_slice(&in_mod.to_be_bytes());
        registers[16..24].copy_from_slice(&OUT_BOX.to_be_bytes());
        registers[24..26].copy_from_slice(&[0xff, 0xff]);
        registers[30..].copy_from_slice(&((op_mod << 12 | opcode) as u16).to_be_bytes());
        self.machine.put(VHCR, &registers);
        if self.speak(5, 0) != Some(0) {
            return (NOT_RUN, 0);
        }
        let out = u64::from_be_bytes(self.machine.bytes(VHCR + 16, 8).try_into().unwrap());
        (self.machine.bytes(VHCR + 28, 1)[0], out)
    }

    /// Posts a command without parameters that ends with an event.
    pub fn post_with_event(&mut self, opcode: u16) {
        let mut registers = [0; 32];
        registers[29] = 1 << 6;
        registers[30..].copy_from_slice(&opcode.to_be_bytes());
        self.machine.put(VHCR, &registers);
        self.speak(5, 0);
    }

    /// ALLOC_RES: returns the status and the number.
    pub fn allocate(&mut self, kind: u32, step: u32, parameter: u64) -> (u8, u32) {
        let (status, out) = self.slave_command(0xf00, step, kind, parameter);
        (status, out as u32)
    }

    /// FREE_RES: returns the status.
    pub fn free(&mut self, kind: u32, step: u32, parameter: u64) -> u8 {
        self.slave_command(0xf01, step, kind, parameter).0
    }

    /// Allocates a queue pair and a completion queue for the slave.
    pub fn numbers(&mut self) -> (u32, u32) {
        let (status, qpn) = self.allocate(QP, RESERVE, 1 << 32 | 1);
        assert_eq!(status, 0);
        assert_eq!(self.allocate(QP, MAP, u64::from(qpn)).0, 0);
        let (status, cqn) = self.allocate(CQ, RESERVE_AND_MAP, 0);
        assert_eq!(status, 0);
        (qpn, cqn)
    }

    /// Runs WRITE_MTT for `len` bytes at `at`. Returns the byte offset of the first entry.
    pub(crate) fn map_slave_pages(&mut self, at: u64, len: u64) -> u32 {
        let pages = len.div_ceil(4096) as u32;
        let (status, first) =
            self.allocate(MTT, RESERVE_AND_MAP, u64::from(pages.next_power_of_two().ilog2()));
        assert_eq!(status, 0);
        assert_eq!(self.write_mtt(first, pages, at), 0);
        first * 8
    }

    /// Runs WRITE_MTT for `count` pages at `at`. Returns the status.
    pub fn write_mtt(&mut self, first: u32, count: u32, at: u64) -> u8 {
        self.machine.put(IN_BOX, &[0; 4096]);
        self.machine.put(IN_BOX + 4, &first.to_be_bytes());
        for page in 0..u64::from(count.min(510)) {
            self.machine.put(IN_BOX + 16 + page * 8, &(at + page * 4096).to_be_bytes());
        }
        self.slave_command(0x011, 0, count, IN_BOX).0
    }
}
