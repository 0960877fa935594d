//! From the loader to [`BootInfo`], the one description of the machine that the rest of the kernel sees.

pub mod acpi;
pub mod chart;
pub mod cmdline;
pub mod fw_cfg;
pub mod modules;
mod pvh;

pub use pvh::read as read_pvh;

use x86_64::PhysAddr;

/// A run of physical memory, `start` to `end` (exclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub start: PhysAddr,
    /// One past the last byte.
    pub end: PhysAddr,
}

impl Region {
    /// From `start`, `len` bytes, cut at the end of what the processor can address.
    pub fn new(start: u64, len: u64) -> Self {
        let top = (1 << 52) - 1;
        let end = start.saturating_add(len).min(top);
        Self { start: PhysAddr::new_truncate(start.min(top)), end: PhysAddr::new_truncate(end) }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.end.as_u64().saturating_sub(self.start.as_u64())
    }
}

/// Most regions kept of a memory map, and of loaded modules; what is beyond is not used, and said on the console.
pub const MAX_REGIONS: usize = 64;
/// Longest command line kept.
pub const MAX_CMDLINE: usize = 4096;

/// What the loader said.
pub struct BootInfo {
    /// Usable RAM, as the loader lists it.
    pub ram: regions::Regions,
    /// Memory that holds modules the loader brought.
    pub modules: regions::Regions,
    /// ACPI's root pointer.
    pub rsdp: Option<PhysAddr>,
    cmdline: [u8; MAX_CMDLINE],
    cmdline_len: usize,
}

impl BootInfo {
    /// The kernel command line; what is not UTF-8 in it ends it.
    pub fn cmdline(&self) -> &str {
        let bytes = &self.cmdline[..self.cmdline_len];
        match core::str::from_utf8(bytes) {
            Ok(s) => s,
            Err(e) => core::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or(""),
        }
    }
}

pub mod regions {
    //! A short list of regions that needs no heap.

    use super::{MAX_REGIONS, Region};
    use x86_64::PhysAddr;

    /// Up to [`MAX_REGIONS`] regions.
    pub struct Regions {
        list: [Region; MAX_REGIONS],
        len: usize,
        /// Regions that found no room.
        pub dropped: usize,
    }

    impl Regions {
        /// None.
        pub const fn new() -> Self {
            let none = Region { start: PhysAddr::zero(), end: PhysAddr::zero() };
            Self { list: [none; MAX_REGIONS], len: 0, dropped: 0 }
        }

        /// Adds `region`, unless it is empty or the list is full.
        pub fn push(&mut self, region: Region) {
            if region.len() == 0 {
                return;
            }
            match self.list.get_mut(self.len) {
                Some(slot) => {
                    *slot = region;
                    self.len += 1;
                }
                None => self.dropped += 1,
            }
        }

        /// All of them.
        pub fn iter(&self) -> impl Iterator<Item = Region> + Clone + '_ {
            self.list.iter().take(self.len).copied()
        }
    }
}
