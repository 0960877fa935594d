//! The communication channel: the first page of a virtual function's BAR 2. A slave sends its master one word
//! at a time, and the master answers with a toggle bit (Linux `mlx4/cmd.c`).

/// The length of the channel's registers, in bytes, from the start of BAR 2.
pub(super) const CHANNEL_LEN: u64 = 16;

const SLAVE_WRITE: u64 = 0x0;
const SLAVE_READ: u64 = 0x4;
const CAPABILITIES: u64 = 0x8;
const FLAGS: u64 = 0xc;

/// Capability: the slave may request a reset of its function.
const CAP_RESET: u32 = 1 << 30;
const RESET_REQUEST: u32 = 1 << 16;
const RESET_ACKNOWLEDGE: u32 = 1 << 8;

const TOGGLE: u32 = 1 << 31;
/// The master has rejected the slave, which must reset itself.
const INTERNAL_ERROR: u32 = 1 << 17;
/// The revision of the channel, and the version of the interface.
const VERSION: u32 = 1 << 8 | 1;

/// A slave's request to its master. The master answers it with [`Channel::reply`] or [`Channel::give_up`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// Release all the slave's resources. The channel has already answered.
    Forget,
    /// Run the command at a bus address of the slave.
    Run {
        /// The bus address of the virtual command registers (vHCR).
        vhcr: u64,
    },
}

/// The last word of the slave's startup sequence, whose order is fixed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Stage {
    #[default]
    Reset,
    Vhcr0,
    Vhcr1,
    Vhcr2,
    Enabled,
}

/// Command words of a slave.
mod word {
    pub(super) const RESET: u8 = 0;
    pub(super) const VHCR0: u8 = 1;
    pub(super) const VHCR1: u8 = 2;
    pub(super) const VHCR2: u8 = 3;
    pub(super) const VHCR_EN: u8 = 4;
    pub(super) const VHCR_POST: u8 = 5;
}

/// The registers, and the slave's position in the startup sequence.
#[derive(Debug, Default)]
pub(super) struct Channel {
    slave_write: u32,
    slave_read: u32,
    flags: u32,
    stage: Stage,
    vhcr: u64,
}

impl Channel {
    /// Reads a register.
    #[must_use]
    pub(super) const fn read(&self, offset: u64) -> u32 {
        match offset {
            SLAVE_WRITE => self.slave_write,
            SLAVE_READ => self.slave_read,
            CAPABILITIES => CAP_RESET,
            FLAGS => self.flags,
            _ => 0,
        }
    }

    /// Writes a register.
    pub(super) fn write(&mut self, offset: u64, value: u32) -> Option<Task> {
        match offset {
            SLAVE_WRITE => {
                self.slave_write = value;
                // The toggle is unchanged, so the word is not new.
                if (value ^ self.slave_read) & TOGGLE == 0 {
                    return None;
                }
                self.handle_word((value >> 16) as u8, value as u16)
            }
            // A slave that finds the two words out of step writes zero to both.
            SLAVE_READ => {
                self.slave_read = value;
                None
            }
            FLAGS if (value ^ self.flags) & RESET_REQUEST != 0 => {
                self.stage = Stage::Reset;
                self.flags = value & RESET_REQUEST;
                if self.flags != 0 {
                    self.flags |= RESET_ACKNOWLEDGE;
                }
                Some(Task::Forget)
            }
            _ => None,
        }
    }

    fn handle_word(&mut self, said: u8, parameter: u16) -> Option<Task> {
        let parameter = u64::from(parameter);
        let (stage, vhcr) = match (said, self.stage) {
            (word::RESET, _) => {
                self.stage = Stage::Reset;
                self.answer(VERSION);
                return Some(Task::Forget);
            }
            (word::VHCR0, Stage::Reset) => (Stage::Vhcr0, parameter << 48),
            (word::VHCR1, Stage::Vhcr0) => (Stage::Vhcr1, self.vhcr | parameter << 32),
            (word::VHCR2, Stage::Vhcr1) => (Stage::Vhcr2, self.vhcr | parameter << 16),
            (word::VHCR_EN, Stage::Vhcr2) => (Stage::Enabled, self.vhcr | parameter),
            (word::VHCR_POST, Stage::Enabled) => return Some(Task::Run { vhcr: self.vhcr }),
            _ => {
                log::warn!("the slave sends {said:#x} in stage {:?}", self.stage);
                self.give_up();
                return Some(Task::Forget);
            }
        };
        (self.stage, self.vhcr) = (stage, vhcr);
        self.answer(0);
        None
    }

    fn answer(&mut self, word: u32) {
        self.slave_read = self.slave_write & TOGGLE | word;
    }

    /// Reports the task as done.
    pub(super) fn reply(&mut self) {
        self.answer(0);
    }

    /// Rejects the slave after an invalid word: it must begin again with a reset. The caller releases the
    /// slave's resources.
    pub(super) fn give_up(&mut self) {
        self.stage = Stage::Reset;
        self.answer(INTERNAL_ERROR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u32 = TOGGLE;

    #[test]
    fn a_slave_tells_where_its_registers_are_and_then_posts() {
        let mut channel = Channel::default();
        assert_eq!(channel.write(0, T), Some(Task::Forget));
        assert_eq!(channel.read(4), T | 0x101);
        for (i, (said, parameter)) in
            [(1, 0x0001u32), (2, 0x0203), (3, 0x4567), (4, 0x8000)].into_iter().enumerate()
        {
            let toggle = if i % 2 == 0 { 0 } else { T };
            assert_eq!(channel.write(0, toggle | said << 16 | parameter), None);
            assert_eq!(channel.read(4), toggle);
        }
        assert_eq!(channel.write(0, 5 << 16), Some(Task::Run { vhcr: 0x0001_0203_4567_8000 }));
        assert_eq!(channel.read(4), T, "not yet");
        channel.reply();
        assert_eq!(channel.read(4), 0);
        assert_eq!(channel.write(0, 5 << 16), None, "an unchanged toggle is no new word");
    }

    #[test]
    fn a_word_out_of_order_is_an_error_until_a_reset() {
        let mut channel = Channel::default();
        assert_eq!(channel.write(0, T | 5 << 16), Some(Task::Forget));
        assert_eq!(channel.read(4), T | INTERNAL_ERROR);
        assert_eq!(channel.write(0, 2 << 16), Some(Task::Forget));
        assert_eq!(channel.write(0, T), Some(Task::Forget));
        assert_eq!(channel.read(4), T | VERSION);
        assert_eq!(channel.write(0, 99 << 16), Some(Task::Forget));
    }

    #[test]
    fn a_reset_by_flag_is_acknowledged_each_time() {
        let mut channel = Channel::default();
        assert_eq!(channel.write(0xc, RESET_REQUEST), Some(Task::Forget));
        assert_eq!(channel.read(0xc), RESET_REQUEST | RESET_ACKNOWLEDGE);
        assert_eq!(channel.write(0xc, RESET_REQUEST), None);
        assert_eq!(channel.write(0xc, 0), Some(Task::Forget));
        assert_eq!(channel.read(0xc), 0);
    }
}
