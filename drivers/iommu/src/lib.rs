//! Finds the IOMMUs of a machine in the tables of its firmware, and tells by a register of each whether it
//! is enabled. This crate is logic only.
//!
//! A node gives its RNIC and its peers physical addresses. An IOMMU that translates the addresses of devices,
//! as firmware or another kernel may have left it, makes them refer to other memory, or to none.
//!
//! # Neighbours
//! The kernel reads tables and registers for it, and refuses to start a node under an enabled IOMMU.
#![no_std]
#![forbid(unsafe_code)]

use core::fmt;

/// The register layout of an IOMMU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Intel VT-d (table DMAR).
    Intel,
    /// AMD-Vi (table IVRS).
    Amd,
}

/// An IOMMU that a table describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unit {
    /// The layout of the unit's registers.
    pub kind: Kind,
    /// The physical address of its registers.
    pub registers: u64,
}

/// The offset of the first structure in either table (Intel VT-d specification 8.1; AMD I/O virtualization
/// specification 5.2.1).
const FIRST: usize = 48;

impl Unit {
    /// Returns the offset of the 32-bit register that says if the unit is enabled: Intel's global status
    /// (VT-d specification 11.4.4.2), or the lower half of AMD's control register (3.4.2).
    #[must_use]
    pub const fn status_offset(self) -> u64 {
        match self.kind {
            Kind::Intel => 0x1c,
            Kind::Amd => 0x18,
        }
    }

    /// Returns true if the unit translates addresses of devices, given the value of that register: TES (bit
    /// 31) or IommuEn (bit 0). Absent registers read as all ones, which counts as enabled.
    #[must_use]
    pub const fn translates(self, status: u32) -> bool {
        match self.kind {
            Kind::Intel => status & 1 << 31 != 0,
            Kind::Amd => status & 1 != 0,
        }
    }

    /// Returns the offset of the 32-bit register that says if Intel's unit protects two ranges of memory from
    /// devices, which it may do without translation (protected memory enable, 11.4.8.1). AMD's units have
    /// none.
    #[must_use]
    pub const fn protection_offset(self) -> Option<u64> {
        match self.kind {
            Kind::Intel => Some(0x64),
            Kind::Amd => None,
        }
    }

    /// Returns true if the unit protects memory from devices, given the value of that register: PRS (bit 0).
    #[must_use]
    pub const fn protects(self, protection: u32) -> bool {
        matches!(self.kind, Kind::Intel) && protection & 1 != 0
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = match self.kind {
            Kind::Intel => "DMAR",
            Kind::Amd => "IVRS",
        };
        write!(f, "the IOMMU at {:#x} ({table})", self.registers)
    }
}

/// Returns the IOMMUs of a table. The table may contain any bytes: the first malformed structure ends the
/// list.
pub fn units(table: &[u8]) -> impl Iterator<Item = Unit> {
    let kind = match table.get(..4) {
        Some(b"DMAR") => Some(Kind::Intel),
        Some(b"IVRS") => Some(Kind::Amd),
        _ => None,
    };
    let structures = kind.map(|kind| Structures { kind, rest: table.get(FIRST..).unwrap_or(&[]) });
    structures.into_iter().flatten().flatten()
}

/// The structures of a table; `None` for one that is not an IOMMU's.
struct Structures<'a> {
    kind: Kind,
    rest: &'a [u8],
}

impl Iterator for Structures<'_> {
    type Item = Option<Unit>;

    fn next(&mut self) -> Option<Option<Unit>> {
        // A DRHD has a type and a length of 16 bits each; an IVHD has a byte for its type, one for flags, and
        // then its length.
        let len = usize::from(half(self.rest, 2)?);
        let structure = self.rest.get(..len).filter(|structure| structure.len() >= 4)?;
        self.rest = self.rest.get(len..)?;
        let is_unit = match self.kind {
            Kind::Intel => half(structure, 0)? == 0,
            Kind::Amd => matches!(structure.first()?, 0x10 | 0x11 | 0x40),
        };
        let unit = |registers| Unit { kind: self.kind, registers };
        Some(if is_unit { double(structure, 8).map(unit) } else { None })
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn double(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn table(signature: &[u8; 4], structures: &[&[u8]]) -> Vec<u8> {
        let mut table = signature.to_vec();
        table.resize(FIRST, 0);
        structures.iter().for_each(|structure| table.extend_from_slice(structure));
        table
    }

    /// The table of QEMU's `intel-iommu`: the unit, with the I/O APIC in its scope, and a structure for ATS.
    #[test]
    fn units_of_intel() {
        let mut unit = [0u8; 24];
        unit[2] = 24;
        unit[4] = 1;
        unit[8..16].copy_from_slice(&0xfed9_0000u64.to_le_bytes());
        unit[16] = 3;
        unit[17] = 8;
        let ats = [2, 0, 8, 0, 1, 0, 0, 0];
        let second = {
            let mut second = unit;
            second[8..16].copy_from_slice(&0xfed9_1000u64.to_le_bytes());
            second
        };
        let dmar = table(b"DMAR", &[&unit, &ats, &second]);
        let found: Vec<_> = units(&dmar).collect();
        let expected = [0xfed9_0000, 0xfed9_1000].map(|registers| Unit { kind: Kind::Intel, registers });
        assert_eq!(found, expected);
    }

    /// The IVRS table of QEMU's `amd-iommu` describes one unit in structures of two types.
    #[test]
    fn units_of_amd() {
        let structure = |kind: u8, len: u8| {
            let mut unit = std::vec![0u8; len.into()];
            (unit[0], unit[2]) = (kind, len);
            unit[8..16].copy_from_slice(&0xfed8_0000u64.to_le_bytes());
            unit
        };
        let (old, new, memory) = (structure(0x10, 24), structure(0x11, 40), structure(0x21, 32));
        let found: Vec<_> = units(&table(b"IVRS", &[&old, &memory, &new])).collect();
        assert_eq!(found, [Unit { kind: Kind::Amd, registers: 0xfed8_0000 }; 2]);
    }

    #[test]
    fn one_bit_says_whether_a_unit_is_on() {
        let [intel, amd] = [Kind::Intel, Kind::Amd].map(|kind| Unit { kind, registers: 0x1000 });
        for (unit, status, on) in [
            (intel, 0, false),
            (intel, 1 << 31, true),
            // The root table is set, interrupts are remapped, a write buffer was flushed: none of these bits
            // means translation.
            (intel, 0x7fff_ffff, false),
            (intel, u32::MAX, true),
            (amd, 0, false),
            (amd, 1, true),
            (amd, 0xffff_fffe, false),
            (amd, u32::MAX, true),
        ] {
            assert_eq!(unit.translates(status), on, "{unit}: {status:#x}");
        }
        assert_eq!((intel.status_offset(), amd.status_offset()), (0x1c, 0x18));
        assert!(intel.protects(0x8000_0001) && !intel.protects(1 << 31) && !amd.protects(1));
        assert_eq!((intel.protection_offset(), amd.protection_offset()), (Some(0x64), None));
    }

    #[test]
    fn tables_that_make_no_sense_end() {
        let mut unit = [0u8; 16];
        unit[2] = 16;
        for bytes in [
            &[][..],
            b"DMAR",
            &table(b"FACP", &[&unit]),
            &table(b"DMAR", &[&[0, 0, 0, 0, 0, 0]]),
            &table(b"DMAR", &[&[0, 0, 3, 0]]),
            &table(b"DMAR", &[&[0, 0, 0xff, 0xff]]),
            // A unit without room for its address.
            &table(b"DMAR", &[&[0, 0, 8, 0, 0, 0, 0, 0]]),
            &table(b"IVRS", &[&[0x10]]),
        ] {
            assert_eq!(units(bytes).count(), 0, "{bytes:?}");
        }
        // Units before the malformed structure are found.
        assert_eq!(units(&table(b"DMAR", &[&unit, &[0, 0, 0, 0]])).count(), 1);
    }
}
