//! The boot parameters of Linux ("zero page"), which its loaders pass.

use crate::bytes::{u32_at, u64_at};
use crate::map::{Entry, Map};

/// Offsets in the boot parameters (Documentation/arch/x86/zero-page.rst, boot.rst).
mod offset {
    pub(super) const RSDP: usize = 0x70;
    pub(super) const RAMDISK_HIGH: usize = 0xc0;
    pub(super) const RAMDISK_LEN_HIGH: usize = 0xc4;
    pub(super) const CMDLINE_HIGH: usize = 0xc8;
    pub(super) const EFI_SIGNATURE: usize = 0x1c0;
    pub(super) const EFI_SYSTEM_TABLE: usize = 0x1c4;
    pub(super) const EFI_SYSTEM_TABLE_HIGH: usize = 0x1d8;
    pub(super) const MAP_LEN: usize = 0x1e8;
    pub(super) const LOADER: usize = 0x210;
    pub(super) const RAMDISK: usize = 0x218;
    pub(super) const RAMDISK_LEN: usize = 0x21c;
    pub(super) const CMDLINE: usize = 0x228;
    pub(super) const MAP: usize = 0x2d0;
}

/// The length of boot parameters, in bytes.
pub const PARAMS_LEN: usize = 4096;
/// The most entries of the map in the boot parameters.
const MAP_ENTRIES: usize = 128;
/// The length of an entry of the map.
const MAP_ENTRY: usize = 20;
/// The signature of a loader that was itself loaded by 64-bit EFI: "EL64".
const EL64: u32 = 0x3436_4c45;

/// The boot parameters.
#[derive(Clone, Copy)]
pub struct BootParams<'a>(&'a [u8]);

impl<'a> BootParams<'a> {
    /// Returns the boot parameters in these bytes.
    #[must_use]
    pub const fn new(bytes: &'a [u8; PARAMS_LEN]) -> Self {
        Self(bytes)
    }

    fn word(&self, at: usize) -> u64 {
        u64::from(u32_at(self.0, at).unwrap_or(0))
    }

    fn wide(&self, low: usize, high: usize) -> u64 {
        self.word(low) | self.word(high) << 32
    }

    /// Returns the loader's type and version: the byte `type_of_loader` of the boot protocol.
    #[must_use]
    pub fn loader(&self) -> u8 {
        self.0.get(offset::LOADER).copied().unwrap_or(0)
    }

    /// Returns the address of the command line, which ends with a zero; `None` if there is none.
    #[must_use]
    pub fn cmdline(&self) -> Option<u64> {
        Some(self.wide(offset::CMDLINE, offset::CMDLINE_HIGH)).filter(|at| *at != 0)
    }

    /// Sets the address of the command line in a copy of boot parameters.
    pub fn set_cmdline(params: &mut [u8; PARAMS_LEN], at: u32) {
        for (offset, value) in [(offset::CMDLINE, at), (offset::CMDLINE_HIGH, 0)] {
            if let Some(word) = params.get_mut(offset..).and_then(|rest| rest.first_chunk_mut()) {
                *word = value.to_le_bytes();
            }
        }
    }

    /// Returns the address and the length of the initial RAM disk, if there is one.
    #[must_use]
    pub fn ramdisk(&self) -> Option<(u64, u64)> {
        let len = self.wide(offset::RAMDISK_LEN, offset::RAMDISK_LEN_HIGH);
        let at = self.wide(offset::RAMDISK, offset::RAMDISK_HIGH);
        (at != 0 && len != 0).then_some((at, len))
    }

    /// Returns the address of ACPI's root pointer, if the loader passes it.
    #[must_use]
    pub fn rsdp(&self) -> Option<u64> {
        u64_at(self.0, offset::RSDP).filter(|at| *at != 0)
    }

    /// Returns the address of EFI's system table, if EFI has loaded the loader.
    #[must_use]
    pub fn efi_system_table(&self) -> Option<u64> {
        let table = self.wide(offset::EFI_SYSTEM_TABLE, offset::EFI_SYSTEM_TABLE_HIGH);
        (self.word(offset::EFI_SIGNATURE) == u64::from(EL64) && table != 0).then_some(table)
    }

    /// Adds the entries of the memory map to `map`.
    pub fn read_map(&self, map: &mut Map) {
        let len = self.0.get(offset::MAP_LEN).map_or(0, |len| usize::from(*len));
        for index in 0..len.min(MAP_ENTRIES) {
            let at = offset::MAP + index * MAP_ENTRY;
            let (start, size, kind) = (u64_at(self.0, at), u64_at(self.0, at + 8), u32_at(self.0, at + 16));
            if let (Some(start), Some(size), Some(kind)) = (start, size, kind) {
                map.push(Entry::new(start, size, kind));
            }
        }
    }
}
