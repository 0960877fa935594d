//! Messages on the first serial port.
//!
//! The formatting of `core` would make the stub twice as long, and crates for serial ports need it.

use core::arch::asm;

/// The I/O address of the first serial port of a PC, a 16550.
const COM1: u16 = 0x3f8;
/// The offset of the line status register, and its bit that says that a byte can be sent.
const LINE_STATUS: u16 = 5;
const CAN_SEND: u8 = 1 << 5;
/// The tries to send a byte. A port that is not ready by then is left alone: there may be none.
const TRIES: u32 = 100_000;

fn read(port: u16) -> u8 {
    let value;
    // SAFETY: reading a register of the serial port changes no memory.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags)) };
    value
}

fn write_to(port: u16, value: u8) {
    // SAFETY: writing a register of the serial port changes no memory.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) };
}

/// A part of a message.
#[derive(Clone, Copy)]
pub(crate) enum Part<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
    /// A number, printed in hexadecimal digits.
    Hex(u64),
}

/// Prints a line, if there is a serial port. Its speed is the one that the firmware has set, or 115,200 baud.
pub(crate) fn line(parts: &[Part<'_>]) {
    /// The registers of a 16550 and their values: no interrupts; the divisor; 8 data bits, no parity, 1 stop
    /// bit; empty queues; ready.
    const SET_UP: [(u16, u8); 7] = [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 3), (2, 7), (4, 3)];
    if read(COM1 + 3) & 3 != 3 {
        SET_UP.iter().for_each(|(register, value)| write_to(COM1 + register, *value));
    }
    let mut left = TRIES;
    let mut send = |byte| {
        while left > 0 && read(COM1 + LINE_STATUS) & CAN_SEND == 0 {
            left -= 1;
        }
        write_to(COM1, byte);
    };
    "stub: ".bytes().for_each(&mut send);
    write(parts, &mut send);
    "\r\n".bytes().for_each(&mut send);
}

/// Prints a line as [`line()`] does. A constant list of parts would need relocations, and one that is
/// made of an argument does not.
#[inline(never)]
pub(crate) fn text(text: &str) {
    line(&[Part::Text(text)]);
}

/// Passes the bytes of a message to `out`.
pub(crate) fn write(parts: &[Part<'_>], out: &mut dyn FnMut(u8)) {
    for part in parts {
        match part {
            Part::Text(text) => text.bytes().for_each(&mut *out),
            Part::Bytes(bytes) => bytes.iter().for_each(|byte| out(*byte)),
            Part::Hex(number) => {
                out(b'0');
                out(b'x');
                let digits = (64 - number.leading_zeros()).div_ceil(4).max(1);
                for index in (0..digits).rev() {
                    let digit = (number >> (4 * index)) as u8 & 15;
                    out(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 });
                }
            }
        }
    }
}
