//! The start info of PVH, version 1: the description of the machine that the kernel is entered with.

/// The bytes "xEn3" with the top bit of the "E" set.
const MAGIC: u32 = 0x336e_c578;

/// The form of `hvm_start_info`. All addresses are physical.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules_len: u32,
    modules: u64,
    cmdline: u64,
    rsdp: u64,
    map: u64,
    map_len: u32,
    reserved: u32,
}

/// The form of `hvm_modlist_entry`: a file that the loader has put into memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// The physical address of the first byte.
    pub start: u64,
    /// The length in bytes.
    pub len: u64,
    cmdline: u64,
    reserved: u64,
}

impl Module {
    /// Returns the module of `len` bytes at `start`.
    #[must_use]
    pub const fn new(start: u64, len: u64) -> Self {
        Self { start, len, cmdline: 0, reserved: 0 }
    }

    /// Returns the module with a name: the physical address of a text that ends with a zero.
    #[must_use]
    pub const fn named(self, name: u64) -> Self {
        Self { cmdline: name, ..self }
    }
}

impl StartInfo {
    /// Returns the start info of a machine with this command line, which ends with a zero, and ACPI's root
    /// pointer, 0 if it is not known.
    #[must_use]
    pub fn new(cmdline: u64, rsdp: u64) -> Self {
        Self { magic: MAGIC, version: 1, cmdline, rsdp, ..Self::default() }
    }

    /// Adds the memory map: `len` entries at `at`.
    #[must_use]
    pub const fn with_map(self, at: u64, len: u32) -> Self {
        Self { map: at, map_len: len, ..self }
    }

    /// Adds the modules: `len` entries at `at`.
    #[must_use]
    pub const fn with_modules(self, at: u64, len: u32) -> Self {
        Self { modules: at, modules_len: len, ..self }
    }
}
