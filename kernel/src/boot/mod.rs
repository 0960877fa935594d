//! The descriptions of the machine that the kernel is started with, read once and kept: the loader's
//! ([`BootInfo`]), the firmware's ([`acpi`]) and the launcher's files ([`fw_cfg`]).
//!
//! ```text
//! PVH start info --> init -------> info()    RAM, modules, command line, ACPI's root pointer
//! ACPI tables -----> acpi::init -> tables()  processors, PCI windows, timers, power, IOMMUs
//! QEMU's fw_cfg ---> fw_cfg::read            the cluster key
//! ```

pub(crate) mod acpi;
pub(crate) mod fw_cfg;
mod pvh;

use firmware::ranges::{Span, Spans, start_page};
use spin::Once;
use x86_64::PhysAddr;

/// A run of physical memory, `start` to `end` (exclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub start: PhysAddr,
    /// The address after the last byte of the region.
    pub end: PhysAddr,
}

impl Region {
    /// Returns the region of `len` bytes from `start`, cut at the end of the processor's address range.
    pub(crate) fn new(start: u64, len: u64) -> Self {
        let top = (1 << 52) - 1;
        let end = start.saturating_add(len).min(top);
        Self { start: PhysAddr::new_truncate(start.min(top)), end: PhysAddr::new_truncate(end) }
    }

    /// Returns the length of the region, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.end.as_u64().saturating_sub(self.start.as_u64())
    }
}

/// The virtual address of physical address 0: the direct map. The boot page tables map the first 4 GiB
/// there, the final ones all RAM.
pub(crate) const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;

/// The most regions that are kept of loaded modules. Further regions are not used, and reported on
/// the console.
pub(crate) const MAX_REGIONS: usize = 64;
/// The most runs of RAM that are kept of a memory map, after adjacent ones are merged. The smallest are not
/// used beyond that, and reported on the console.
pub(crate) const MAX_RAM: usize = 512;
/// The longest command line, in bytes.
pub(crate) const MAX_CMDLINE: usize = 4096;
/// The longest description of the loader, in bytes.
pub(crate) const MAX_LOADER: usize = 384;

/// The name of a module with configuration of the boot file itself: its command line. A module without one
/// of these names is the loader's.
pub(crate) const BUILT_IN: &str = "built-in";
/// The name of modules from a partition: the EFI system partition, or another one.
pub(crate) const PARTITION: &str = "esp";
/// The name of a module that describes the loader, for people.
pub(crate) const LOADER: &str = "loader";
/// The name of a module that is a [`Framebuffer`], and no file.
pub(crate) const FRAMEBUFFER: &str = "framebuffer";

/// A screen of pixels in memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framebuffer {
    /// The physical address of the first pixel.
    pub address: u64,
    /// Pixels in a line.
    pub width: u32,
    /// Lines.
    pub height: u32,
    /// Bytes from one line to the next.
    pub pitch: u32,
    /// Bits of a pixel.
    pub bits: u32,
}

/// The loader's description of the machine.
pub(crate) struct BootInfo {
    /// Usable RAM, as the loader lists it.
    pub ram: RamMap,
    /// Memory that holds modules from the loader.
    pub modules: regions::Regions,
    /// The module that is configuration in the boot file itself.
    pub built_in: Option<Region>,
    /// The modules with settings and a key of a partition.
    pub partition: [Option<Region>; 2],
    /// The screen of pixels that firmware has set up.
    pub framebuffer: Option<Framebuffer>,
    /// ACPI's root pointer.
    pub rsdp: Option<PhysAddr>,
    cmdline: [u8; MAX_CMDLINE],
    cmdline_len: usize,
    loader: [u8; MAX_LOADER],
    loader_len: usize,
}

/// The RAM of a memory map: sorted runs, without memory that the map also lists as something else.
pub(crate) struct RamMap(&'static Spans<MAX_RAM>);

impl RamMap {
    /// Returns the runs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Region> + Clone + '_ {
        self.0.spans().iter().map(|s| Region::new(s.start, s.len()))
    }

    /// Returns the number of runs that were dropped because there are too many.
    pub(crate) fn dropped(&self) -> usize {
        self.0.dropped()
    }

    /// Returns a page for the start of processors, which is not in `taken`; see [`start_page`].
    pub(crate) fn start_page(&self, taken: &regions::Regions) -> Option<PhysAddr> {
        let taken = taken.iter().map(|r| Span { start: r.start.as_u64(), end: r.end.as_u64() });
        start_page(self.0, taken).map(PhysAddr::new_truncate)
    }
}

static INFO: Once<BootInfo> = Once::new();

/// Reads the loader's description of the machine.
///
/// # Safety
/// The loader must have passed `start_info`, and the first 4 GiB must be in the direct map.
///
/// # Panics
/// Panics if the loader has passed no memory map.
pub(crate) unsafe fn init(start_info: u64) -> &'static BootInfo {
    // SAFETY: the caller's promise.
    match unsafe { pvh::read(start_info) } {
        Some(info) => INFO.call_once(|| info),
        None => panic!("the loader passed no PVH start info with a memory map at {start_info:#x}"),
    }
}

/// Returns the loader's description of the machine.
///
/// # Panics
/// Panics before [`init`].
pub(crate) fn info() -> &'static BootInfo {
    INFO.get().expect("boot information before the boot has read it")
}

impl BootInfo {
    /// Returns the boot stub's description of the loader and of the boot file; `None` without a boot stub.
    pub(crate) fn loader(&self) -> Option<&str> {
        let bytes = &self.loader[..self.loader_len];
        core::str::from_utf8(bytes).ok().filter(|text| !text.is_empty())
    }

    /// Returns the kernel command line, up to the first byte that is not UTF-8.
    pub(crate) fn cmdline(&self) -> &str {
        let bytes = &self.cmdline[..self.cmdline_len];
        match core::str::from_utf8(bytes) {
            Ok(s) => s,
            Err(e) => core::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or(""),
        }
    }
}

pub(crate) mod regions {
    //! A short list of regions that needs no heap.

    use super::{MAX_REGIONS, Region};
    use x86_64::PhysAddr;

    /// A list of up to [`MAX_REGIONS`] memory regions.
    pub(crate) struct Regions {
        list: [Region; MAX_REGIONS],
        len: usize,
        /// The number of regions that were dropped because the list was full.
        pub dropped: usize,
    }

    impl Regions {
        pub(crate) const fn new() -> Self {
            let none = Region { start: PhysAddr::zero(), end: PhysAddr::zero() };
            Self { list: [none; MAX_REGIONS], len: 0, dropped: 0 }
        }

        /// Adds `region`, unless it is empty or the list is full.
        pub(crate) fn push(&mut self, region: Region) {
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

        pub(crate) fn iter(&self) -> impl Iterator<Item = Region> + Clone + '_ {
            self.list.iter().take(self.len).copied()
        }
    }
}
