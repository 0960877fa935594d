//! The fixed description table (FADT; ACPI 6.5, 5.2.9), and the sleep type of `\_S5` in byte code.

use crate::{Bytes, Register};

/// The registers that the table names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fadt {
    /// True if the platform has ACPI's reduced hardware, without PM1 registers (QEMU's microvm).
    pub hardware_reduced: bool,
    /// The power management timer, 3.579545 MHz. The flag is true if it has 32 bits rather than 24.
    pub pm_timer: Option<(Register, bool)>,
    /// The register that resets the machine, and the value to write to it.
    pub reset: Option<(Register, u8)>,
    /// The sleep control register of reduced hardware.
    pub sleep_control: Option<Register>,
    /// The PM1 control registers: PM1a, PM1b.
    pub pm1: [Option<Register>; 2],
    /// The port and the value by which firmware gives ACPI's registers to the operating system.
    pub enable: Option<(u16, u8)>,
    /// The physical address of the DSDT.
    pub dsdt: Option<u64>,
}

/// Reads the table.
#[must_use]
pub fn read(t: Bytes<'_>) -> Fadt {
    let flags = t.u32(112).unwrap_or(0);
    let port = |at| t.u32(at).and_then(|p| u16::try_from(p).ok()).filter(|p| *p != 0);
    let register = |extended, legacy| t.register(extended).or_else(|| port(legacy).map(Register::Port));
    // X_DSDT has precedence over DSDT.
    let dsdt = t.u64(140).filter(|a| *a != 0).or_else(|| t.u32(40).map(u64::from)).filter(|a| *a != 0);
    let reset = if flags & 1 << 10 != 0 { t.register(116).zip(t.u8(128)) } else { None };
    let mut found = Fadt { hardware_reduced: flags & 1 << 20 != 0, reset, dsdt, ..Fadt::default() };
    if found.hardware_reduced {
        found.sleep_control = t.register(244);
    } else {
        found.pm_timer = register(208, 76).map(|r| (r, flags & 1 << 8 != 0));
        found.pm1 = [register(172, 64), register(184, 68)];
        found.enable = port(48).zip(t.u8(52).filter(|value| *value != 0));
    }
    found
}

/// Returns `SLP_TYPa` and `SLP_TYPb` of `\_S5`, from the byte code of a DSDT or SSDT:
/// `"_S5_" PackageOp PkgLength NumElements integer integer`.
#[must_use]
pub fn soft_off(code: Bytes<'_>) -> Option<[u8; 2]> {
    let at = code.0.windows(5).position(|w| w == b"_S5_\x12")? + 5;
    let length_bytes = 1 + usize::from(code.u8(at)? >> 6);
    let count = at + length_bytes;
    let (a, next) = integer(code, count + 1)?;
    let b = if code.u8(count)? >= 2 { integer(code, next).map(|(b, _)| b) } else { None };
    Some([a, b.unwrap_or(a)])
}

/// Returns the small integer at `at` in byte code, and the address after it.
fn integer(code: Bytes<'_>, at: usize) -> Option<(u8, usize)> {
    match code.u8(at)? {
        value @ (0 | 1) => Some((value, at + 1)),
        0x0a => Some((code.u8(at + 1)?, at + 2)),
        0x0b => Some((code.u8(at + 1)?, at + 3)),
        0x0c => Some((code.u8(at + 1)?, at + 5)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// A table of a PC, with the values of QEMU's pc.
    #[test]
    fn a_pc() {
        let mut t = vec![0u8; 268];
        t[40..44].copy_from_slice(&0x7ffe_0040u32.to_le_bytes());
        t[48] = 0xb2;
        t[52] = 0xf1;
        t[64..68].copy_from_slice(&0x604u32.to_le_bytes());
        t[76..80].copy_from_slice(&0x608u32.to_le_bytes());
        t[112..116].copy_from_slice(&(1u32 << 10 | 1 << 8).to_le_bytes());
        t[116] = 1;
        t[120..124].copy_from_slice(&0xcf9u32.to_le_bytes());
        t[128] = 0x0f;
        let fadt = read(Bytes(&t));
        assert_eq!(
            fadt,
            Fadt {
                hardware_reduced: false,
                pm_timer: Some((Register::Port(0x608), true)),
                reset: Some((Register::Port(0xcf9), 0x0f)),
                sleep_control: None,
                pm1: [Some(Register::Port(0x604)), None],
                enable: Some((0xb2, 0xf1)),
                dsdt: Some(0x7ffe_0040),
            }
        );
        // The extended blocks have precedence.
        t[184] = 1;
        t[188..190].copy_from_slice(&0x704u16.to_le_bytes());
        assert_eq!(read(Bytes(&t)).pm1, [Some(Register::Port(0x604)), Some(Register::Port(0x704))]);
    }

    #[test]
    fn sleep_types() {
        for (code, types) in [
            (&b"\x08_S5_\x12\x06\x04\0\0\0\0"[..], Some([0, 0])),
            (b"\x08_S5_\x12\x0a\x04\x0a\x05\x0a\x07\0\0", Some([5, 7])),
            (b"\x08_S5_\x12\x41\x00\x02\x0a\x05\x01", Some([5, 1])),
            (b"\x08_S5_\x12\x04\x01\x0a\x06", Some([6, 6])),
            (b"\x08_S4_\x12\x06\x04\0\0\0\0", None),
            (b"_S5_\x12", None),
            (b"_S5_\x12\x06\x04\x70", None),
        ] {
            assert_eq!(soft_off(Bytes(code)), types, "{code:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            let _ = read(Bytes(&bytes));
            let mut code = b"_S5_\x12".to_vec();
            code.extend_from_slice(&bytes);
            let _ = soft_off(Bytes(&code));
        }
    }
}
