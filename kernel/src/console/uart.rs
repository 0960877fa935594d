//! A 16550, output only, FIFO on.

use x86_64::instructions::port::Port;

/// The ports of COM1 to COM4.
pub(super) const COM: [u16; 4] = [0x3f8, 0x2f8, 0x3e8, 0x2e8];
/// Bytes that may be written once the transmitter is empty.
pub(super) const FIFO_BYTES: usize = 16;
/// Reads of the line status after which the UART counts as stuck: about 20 ms on real ports.
const STUCK_READS: u32 = 20_000;
/// Line status: transmitter holding register (with FIFO: the whole FIFO) empty.
const THR_EMPTY: u8 = 1 << 5;

/// The location of a UART's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registers {
    /// Ports from this one on.
    Ports(u16),
    /// Memory at a mapped address, with this many bytes from one register to the next.
    Memory(usize, usize),
}

/// A UART that is present.
pub(super) struct Uart {
    registers: Registers,
    is_stuck: bool,
}

impl Uart {
    /// Initialises the UART: 8N1, FIFO on, no interrupts; 115200 baud unless `keep_rate` is set.
    /// Returns `None` if there is none.
    pub(super) fn probe(registers: Registers, keep_rate: bool) -> Option<Self> {
        let uart = Self { registers, is_stuck: false };
        // The scratch register distinguishes a UART from an empty bus.
        for value in [0x5a, 0xa5] {
            uart.write(7, value);
            if uart.read(7) != value {
                return None;
            }
        }
        uart.write(1, 0);
        if !keep_rate {
            [(3, 0x80), (0, 1), (1, 0)].into_iter().for_each(|(register, value)| uart.write(register, value));
        }
        [(3, 3), (2, 7), (4, 3)].into_iter().for_each(|(register, value)| uart.write(register, value));
        Some(uart)
    }

    /// Returns the location of the registers.
    pub(super) fn registers(&self) -> Registers {
        self.registers
    }

    fn write(&self, register: u16, value: u8) {
        match self.registers {
            // SAFETY: a UART's registers have no effect on memory.
            Registers::Ports(base) => unsafe { Port::new(base + register).write(value) },
            // SAFETY: as above; the registers are mapped.
            Registers::Memory(base, stride) => unsafe {
                ((base + usize::from(register) * stride) as *mut u8).write_volatile(value);
            },
        }
    }

    fn read(&self, register: u16) -> u8 {
        match self.registers {
            // SAFETY: as `write`.
            Registers::Ports(base) => unsafe { Port::new(base + register).read() },
            // SAFETY: as `write`.
            Registers::Memory(base, stride) => unsafe {
                ((base + usize::from(register) * stride) as *const u8).read_volatile()
            },
        }
    }

    /// Returns true if [`FIFO_BYTES`] can be written. With `wait`, it waits until they can, unless the UART
    /// is stuck.
    pub(super) fn ready(&mut self, wait: bool) -> bool {
        if self.is_stuck {
            return true;
        }
        let tries = if wait { STUCK_READS } else { 1 };
        if (0..tries).any(|_| self.read(5) & THR_EMPTY != 0) {
            return true;
        }
        self.is_stuck = wait;
        wait
    }

    /// Writes a byte, after [`Uart::ready`].
    pub(super) fn put(&mut self, byte: u8) {
        if !self.is_stuck {
            self.write(0, byte);
        }
    }
}
