//! The multiple APIC description table (ACPI 6.5, 5.2.12).

use alloc::vec::Vec;

use crate::Bytes;

/// The processors and the address of their local APICs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Madt {
    /// Local APIC ids of enabled processors, in the table's order, each once.
    pub processors: Vec<u32>,
    /// The physical address of the local APICs' registers.
    pub local_apic: Option<u64>,
}

/// The most processors that a table may list. The rest is ignored.
const MAX_PROCESSORS: usize = 4096;

/// Reads the table.
#[must_use]
pub fn read(table: Bytes<'_>) -> Madt {
    let mut found = Madt { processors: Vec::new(), local_apic: table.u32(36).map(u64::from) };
    let mut seen = alloc::collections::BTreeSet::new();
    for (kind, s) in table.structures(44) {
        let (id, flags) = match kind {
            // A processor with an id of 8 bits. The id 255 is no processor.
            0 => (s.u8(3).filter(|id| *id != 255).map(u32::from), s.u32(4)),
            // A processor with an id of 32 bits.
            9 => (s.u32(4).filter(|id| *id != u32::MAX), s.u32(8)),
            _ => (None, None),
        };
        let enabled = 1;
        if let (Some(id), Some(flags)) = (id, flags)
            && flags & enabled != 0
            && found.processors.len() < MAX_PROCESSORS
            && seen.insert(id)
        {
            found.processors.push(id);
        }
        if kind == 5 {
            found.local_apic = s.u64(4).or(found.local_apic);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(structures: &[&[u8]]) -> Vec<u8> {
        let mut table = alloc::vec![0; 44];
        table[36..40].copy_from_slice(&0xfee0_0000u32.to_le_bytes());
        structures.iter().for_each(|s| table.extend_from_slice(s));
        table
    }

    fn small(id: u8, flags: u8) -> [u8; 8] {
        [0, 8, id, id, flags, 0, 0, 0]
    }

    fn large(id: u32) -> Vec<u8> {
        let mut s = alloc::vec![9, 16, 0, 0];
        s.extend_from_slice(&id.to_le_bytes());
        s.extend_from_slice(&1u32.to_le_bytes());
        s.extend_from_slice(&id.to_le_bytes());
        s
    }

    #[test]
    fn enabled_processors_are_listed_once() {
        let io_apic = [1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0];
        let table = table(&[&small(0, 1), &io_apic, &small(2, 0), &small(4, 1), &small(0, 1), &large(300)]);
        let madt = read(Bytes(&table));
        assert_eq!(madt.processors, [0, 4, 300]);
        assert_eq!(madt.local_apic, Some(0xfee0_0000));
    }

    #[test]
    fn all_of_512_processors_are_listed() {
        let structures: Vec<_> = (0..512).map(large).collect();
        let structures: Vec<&[u8]> = structures.iter().map(Vec::as_slice).collect();
        assert_eq!(read(Bytes(&table(&structures))).processors, (0..512).collect::<Vec<_>>());
    }

    #[test]
    fn broadcast_ids_are_no_processors() {
        assert_eq!(read(Bytes(&table(&[&small(255, 1), &large(u32::MAX)]))).processors, [] as [u32; 0]);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            let _ = read(Bytes(&bytes));
        }
    }
}
