//! A 16550 at COM1, output only, FIFO on. An absent one discards all bytes.

use x86_64::instructions::port::Port;

const COM1: u16 = 0x3f8;
/// Bytes that may be written once the transmitter is empty.
pub(super) const FIFO_BYTES: usize = 16;
/// Reads of the line status after which the UART counts as stuck: about 20 ms on real ports.
const STUCK_READS: u32 = 20_000;
/// Line status: transmitter holding register (with FIFO: the whole FIFO) empty.
const THR_EMPTY: u8 = 1 << 5;

pub(super) struct Uart {
    present: bool,
}

fn write(register: u16, value: u8) {
    // SAFETY: COM1's registers have no effect on memory.
    unsafe { Port::new(COM1 + register).write(value) };
}

fn read(register: u16) -> u8 {
    // SAFETY: as `write`.
    unsafe { Port::new(COM1 + register).read() }
}

impl Uart {
    pub(super) const fn new() -> Self {
        Self { present: false }
    }

    /// Initialises the port: 115200 baud, 8N1, FIFO on, no interrupts.
    pub(super) fn init(&mut self) {
        for (register, value) in [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 3), (2, 7), (4, 3)] {
            write(register, value);
        }
        // The scratch register distinguishes a UART from an empty bus.
        write(7, 0x5a);
        self.present = read(7) == 0x5a;
    }

    /// Returns true if [`FIFO_BYTES`] can be written. With `wait`, it waits until they can, unless the UART
    /// is stuck.
    pub(super) fn ready(&mut self, wait: bool) -> bool {
        if !self.present {
            return true;
        }
        let tries = if wait { STUCK_READS } else { 1 };
        if (0..tries).any(|_| read(5) & THR_EMPTY != 0) {
            return true;
        }
        if wait {
            self.present = false;
        }
        wait
    }

    /// Writes a byte, after [`Uart::ready`].
    pub(super) fn put(&mut self, byte: u8) {
        if self.present {
            write(0, byte);
        }
    }
}
