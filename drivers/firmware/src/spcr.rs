//! The serial port console redirection table (SPCR), by which firmware names the port of a server's console,
//! such as serial over LAN.

use crate::{Bytes, Register};

/// The serial port of the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spcr {
    /// The registers of a 16550.
    pub port: Register,
    /// The distance of two registers, in bytes.
    pub stride: u8,
    /// The baud rate; 0 if the port must stay as firmware has set it.
    pub baud: u32,
}

/// Reads the table. Returns `None` if it names no 16550.
#[must_use]
pub fn read(t: Bytes<'_>) -> Option<Spcr> {
    // Types 0 and 1 are a 16550 and its subset, 0x12 a 16550 that the address structure describes in full.
    if !matches!(t.u8(36)?, 0 | 1 | 0x12) {
        return None;
    }
    let port = t.register(40)?;
    let stride = match (port, t.u8(41)?) {
        (Register::Memory(_), width @ (16 | 32)) => width / 8,
        _ => 1,
    };
    let baud = match t.u8(58)? {
        3 => 9600,
        4 => 19_200,
        6 => 57_600,
        7 => 115_200,
        _ => 0,
    };
    Some(Spcr { port, stride, baud })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_port_of_a_server() {
        let mut t = [0u8; 80];
        t[40..48].copy_from_slice(&[1, 8, 0, 0, 0xf8, 2, 0, 0]);
        t[58] = 7;
        let wanted = Spcr { port: Register::Port(0x2f8), stride: 1, baud: 115_200 };
        assert_eq!(read(Bytes(&t)), Some(wanted));
        t[58] = 0;
        assert_eq!(read(Bytes(&t)), Some(Spcr { baud: 0, ..wanted }));
        // An ARM PL011 is no 16550.
        t[36] = 3;
        assert_eq!(read(Bytes(&t)), None);
    }

    #[test]
    fn a_port_in_memory_with_wide_registers() {
        let mut t = [0u8; 80];
        t[36] = 0x12;
        t[40..48].copy_from_slice(&[0, 32, 0, 3, 0, 0, 3, 0xfe]);
        t[58] = 3;
        let wanted = Spcr { port: Register::Memory(0xfe03_0000), stride: 4, baud: 9600 };
        assert_eq!(read(Bytes(&t)), Some(wanted));
        assert_eq!(read(Bytes(&t[..50])), None);
    }
}
