//! The boot parameters of Linux ("zero page"), which its loaders pass.

use crate::bytes::{u32_at, u64_at};
use crate::map::{Entry, Map};
use crate::screen::Screen;

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
    pub(super) const ENTRY: usize = 0x1f0;
    pub(super) const LOADER: usize = 0x210;
    pub(super) const RAMDISK: usize = 0x218;
    pub(super) const RAMDISK_LEN: usize = 0x21c;
    pub(super) const CMDLINE: usize = 0x228;
    pub(super) const SETUP_DATA: usize = 0x250;
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

/// The type of setup data with further entries of the memory map.
const FURTHER_ENTRIES: u32 = 1;

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
            set(params, offset, value);
        }
    }

    /// Returns the address of the first setup data, which are a list; `None` if there are none.
    #[must_use]
    pub fn setup_data(&self) -> Option<u64> {
        u64_at(self.0, offset::SETUP_DATA).filter(|at| *at != 0)
    }

    /// Sets the address of the first setup data in a copy of boot parameters.
    pub fn set_setup_data(params: &mut [u8; PARAMS_LEN], at: u32) {
        for (offset, value) in [(offset::SETUP_DATA, at), (offset::SETUP_DATA + 4, 0)] {
            set(params, offset, value);
        }
    }

    /// Returns the width of the entry, in bits, by which the loader has entered the stub, if the stub itself
    /// has noted that it was not the one that it was entered by last.
    #[must_use]
    pub fn entry(&self) -> Option<u8> {
        self.0.get(offset::ENTRY).copied().filter(|width| matches!(width, 16 | 32 | 64))
    }

    /// Notes the width of the entry in a copy of boot parameters, in a byte that Linux leaves unused.
    pub fn set_entry(params: &mut [u8; PARAMS_LEN], width: u8) {
        if let Some(byte) = params.get_mut(offset::ENTRY) {
            *byte = width;
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

    /// Returns the screen of pixels, if the loader has set one up.
    #[must_use]
    pub fn screen(&self) -> Option<Screen> {
        Screen::of_params(self.0)
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
        let end = offset::MAP + len.min(MAP_ENTRIES) * MAP_ENTRY;
        read_entries(self.0.get(offset::MAP..end).unwrap_or_default(), map);
    }
}

/// Adds entries of 20 bytes each to `map`.
fn read_entries(entries: &[u8], map: &mut Map) {
    for entry in entries.chunks_exact(MAP_ENTRY) {
        if let (Some(start), Some(size), Some(kind)) = (u64_at(entry, 0), u64_at(entry, 8), u32_at(entry, 16))
        {
            map.push(Entry::new(start, size, kind));
        }
    }
}

fn set(params: &mut [u8; PARAMS_LEN], offset: usize, value: u32) {
    if let Some(word) = params.get_mut(offset..).and_then(|rest| rest.first_chunk_mut()) {
        *word = value.to_le_bytes();
    }
}

/// The header of setup data, which lies in front of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetupData {
    /// The address of the next setup data, or 0.
    pub next: u64,
    kind: u32,
    /// The length of the data behind the header, in bytes.
    pub len: u32,
}

impl SetupData {
    /// The length of the header, in bytes.
    pub const HEADER: usize = 16;

    /// Reads a header.
    #[must_use]
    pub fn read(bytes: &[u8; Self::HEADER]) -> Self {
        let word = |at| u32_at(bytes, at).unwrap_or(0);
        Self { next: u64_at(bytes, 0).unwrap_or(0), kind: word(8), len: word(12) }
    }

    /// Returns the header of the last setup data, with `len` bytes of entries of the memory map.
    #[must_use]
    pub fn further_entries(len: u32) -> [u8; Self::HEADER] {
        let mut bytes = [0; Self::HEADER];
        bytes[8..12].copy_from_slice(&FURTHER_ENTRIES.to_le_bytes());
        bytes[12..].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    /// Returns true if the data are further entries of the memory map.
    #[must_use]
    pub const fn has_entries(&self) -> bool {
        self.kind == FURTHER_ENTRIES
    }

    /// Adds the entries of the memory map in `data` to `map`.
    pub fn read_map(data: &[u8], map: &mut Map) {
        read_entries(data, map);
    }
}
