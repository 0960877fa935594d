//! The memory map of EFI.

use crate::bytes::{u32_at, u64_at};
use crate::map::{Entry, Map, RAM, RESERVED};

/// The length of a page of EFI, in bytes.
const PAGE: u64 = 4096;
/// The attribute of memory that is meant for one purpose (`EFI_MEMORY_SP`).
const SPECIFIC_PURPOSE: u64 = 1 << 18;

/// Returns the E820 type of memory with an EFI type and attributes, once the boot services have ended
/// (UEFI specification 7.2, ACPI specification 15.4).
fn kind(efi: u32, attributes: u64) -> u32 {
    match efi {
        // Loader code and data, boot services code and data, conventional memory.
        1..=4 | 7 if attributes & SPECIFIC_PURPOSE == 0 => RAM,
        8 => 5,
        9 => 3,
        10 => 4,
        14 => 7,
        _ => RESERVED,
    }
}

/// Adds the entries of a memory map of EFI to `map`: descriptors of `stride` bytes each.
pub fn from_efi(descriptors: &[u8], stride: usize, map: &mut Map) {
    if stride == 0 {
        return;
    }
    for descriptor in descriptors.chunks_exact(stride) {
        let (efi, start) = (u32_at(descriptor, 0), u64_at(descriptor, 8));
        let (pages, attributes) = (u64_at(descriptor, 24), u64_at(descriptor, 32));
        if let (Some(efi), Some(start), Some(pages), Some(attributes)) = (efi, start, pages, attributes) {
            map.push(Entry::new(start, pages.saturating_mul(PAGE), kind(efi, attributes)));
        }
    }
}
