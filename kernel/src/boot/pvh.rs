//! The start info of a PVH loader (Xen's `hvm_start_info`, versions 0 and 1), converted to a [`BootInfo`].

use core::ptr;

use super::{
    BUILT_IN, BootInfo, DIRECT_MAP, FRAMEBUFFER, Framebuffer, LOADER, MAX_CMDLINE, MAX_LOADER, MAX_RAM,
    PARTITION, RamMap, Region, regions::Regions,
};
use firmware::ranges::Spans;
use spin::{Mutex, MutexGuard};
use x86_64::PhysAddr;

/// The bytes "xEn3" with the top bit of the "E" set.
const MAGIC: u32 = 0x336e_c578;
/// The type of usable RAM in the memory map, as in E820.
const RAM: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    nr_modules: u32,
    modlist_paddr: u64,
    cmdline_paddr: u64,
    rsdp_paddr: u64,
    memmap_paddr: u64,
    memmap_entries: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct MemMapEntry {
    addr: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Module {
    paddr: u64,
    size: u64,
    cmdline_paddr: u64,
    reserved: u64,
}

const _: () =
    assert!(size_of::<StartInfo>() == 56 && size_of::<MemMapEntry>() == 24 && size_of::<Module>() == 32);

/// The RAM, which is too large for the boot stack.
static MAP: Mutex<Spans<MAX_RAM>> = Mutex::new(Spans::new());

/// Reads the memory map: RAM without memory that it also lists as something else.
///
/// # Safety
/// The requirements of [`read`] apply, and it is the first call.
unsafe fn ram(info: &StartInfo) -> RamMap {
    let entry = |i: u64| {
        let at = info.memmap_paddr + i * size_of::<MemMapEntry>() as u64;
        // SAFETY: the caller's promise; the map has `memmap_entries` entries.
        unsafe { ptr::read_unaligned((DIRECT_MAP + at) as *const MemMapEntry) }
    };
    let entries = || (0..u64::from(info.memmap_entries)).map(entry);
    let spans = MutexGuard::leak(MAP.lock());
    for e in entries().filter(|e| e.kind == RAM) {
        let region = Region::new(e.addr, e.size);
        spans.add(region.start.as_u64(), region.end.as_u64());
    }
    for e in entries().filter(|e| e.kind != RAM) {
        let region = Region::new(e.addr, e.size);
        spans.remove(region.start.as_u64(), region.end.as_u64());
    }
    RamMap(spans)
}

/// Returns true if the bytes at physical address `at` are `text` and a zero.
///
/// # Safety
/// A text that ends with a zero must lie there, below 4 GiB.
unsafe fn is_text(at: u64, text: &str) -> bool {
    // SAFETY: the caller's promise; nothing is read behind a zero, which differs from the next byte
    // of `text`.
    let is_there = |(i, byte): (u64, u8)| unsafe { ptr::read((DIRECT_MAP + at + i) as *const u8) } == byte;
    (0_u64..).zip(text.bytes().chain([0])).all(is_there)
}

/// Reads the start info at `start_info`. Returns `None` if it is absent or has no memory map.
///
/// # Safety
/// The loader must have passed `start_info`, and the first 4 GiB must be in the direct map.
pub(super) unsafe fn read(start_info: u64) -> Option<BootInfo> {
    // SAFETY: the caller's promise; a PVH loader puts all its structures below 4 GiB.
    let info = unsafe { ptr::read_unaligned((DIRECT_MAP + start_info) as *const StartInfo) };
    if info.magic != MAGIC || info.version < 1 || info.memmap_paddr == 0 {
        return None;
    }
    let mut boot = BootInfo {
        // SAFETY: as above.
        ram: unsafe { ram(&info) },
        modules: Regions::new(),
        built_in: None,
        partition: [None; 2],
        framebuffer: None,
        rsdp: (info.rsdp_paddr != 0).then(|| PhysAddr::new_truncate(info.rsdp_paddr)),
        cmdline: [0; MAX_CMDLINE],
        cmdline_len: 0,
        loader: [0; MAX_LOADER],
        loader_len: 0,
    };
    for i in 0..u64::from(info.nr_modules) {
        let at = info.modlist_paddr + i * size_of::<Module>() as u64;
        // SAFETY: as above.
        let module = unsafe { ptr::read_unaligned((DIRECT_MAP + at) as *const Module) };
        let region = Region::new(module.paddr, module.size);
        // SAFETY: as above; the name ends with a zero.
        let is_named = |name| module.cmdline_paddr != 0 && unsafe { is_text(module.cmdline_paddr, name) };
        if is_named(LOADER) {
            for (at, slot) in (module.paddr..).zip(&mut boot.loader).take(module.size as usize) {
                // SAFETY: the boot stub puts the description below 4 GiB.
                *slot = unsafe { ptr::read((DIRECT_MAP + at) as *const u8) };
            }
            boot.loader_len = boot.loader.len().min(module.size as usize);
            continue;
        }
        if is_named(FRAMEBUFFER) && module.size == size_of::<Framebuffer>() as u64 {
            // SAFETY: as above; any bits are a `Framebuffer`.
            let screen = unsafe { ptr::read_unaligned((DIRECT_MAP + module.paddr) as *const Framebuffer) };
            boot.framebuffer = Some(screen);
            continue;
        }
        boot.modules.push(region);
        if is_named(BUILT_IN) {
            boot.built_in = Some(region);
        } else if is_named(PARTITION)
            && let Some(free) = boot.partition.iter_mut().find(|place| place.is_none())
        {
            *free = Some(region);
        }
    }
    if info.cmdline_paddr != 0 {
        for (i, slot) in boot.cmdline.iter_mut().enumerate() {
            // SAFETY: as above; the command line ends with a zero.
            let byte = unsafe { ptr::read(((DIRECT_MAP + info.cmdline_paddr) as *const u8).add(i)) };
            if byte == 0 {
                break;
            }
            *slot = byte;
            boot.cmdline_len = i + 1;
        }
    }
    Some(boot)
}
