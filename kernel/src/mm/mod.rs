//! Memory: one address space, all RAM mapped once at [`DIRECT_MAP`], W^X, guard pages under every stack.
//!
//! | virtual | what | rights |
//! |---|---|---|
//! | `0x20_0000..` | kernel image, from [`Image::phys`] | text R-X, read-only data R--, data RW- |
//! | `DIRECT_MAP + physical` | all RAM; device registers that [`map_device`] added | RW-, but R-- for kernel text, read-only data and page tables |
//! | `STACKS..` | stacks, each at the top of a slot whose rest is not mapped | RW- |

mod accesses;
pub(crate) mod arena;
pub(crate) mod dma;
pub(crate) mod frames;
pub(crate) mod heap;
pub(crate) mod lent;
pub(crate) mod memory;
pub(crate) mod modules;
mod pages;
pub(crate) mod paging;
pub(crate) mod stacks;

use core::sync::atomic::{AtomicU64, Ordering};
use firmware::numa::Numa;
use x86_64::{PhysAddr, VirtAddr};

use crate::boot::{BootInfo, Region};
use paging::Rights;

pub(crate) use crate::boot::DIRECT_MAP;

/// The physical address space for which the direct map has room, in bytes.
pub(crate) const DIRECT_MAP_BYTES: u64 = 64 << 40;
/// The size of a page and of a frame, in bytes.
pub(crate) const PAGE: u64 = 4096;

unsafe extern "C" {
    static __image_start: u8;
    static __text_end: u8;
    static __rodata_end: u8;
    static __image_end: u8;
}

/// The virtual addresses at which the parts of the image begin and end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Image {
    /// The start of the image and of the text.
    pub start: u64,
    /// The end of the text and start of read-only data.
    pub text_end: u64,
    /// The end of read-only data and start of data.
    pub rodata_end: u64,
    /// The end of the image.
    pub end: u64,
    /// The physical address of the start, a multiple of 2 MiB. The image is one run of physical memory.
    pub phys: u64,
}

impl Image {
    /// Returns the physical address of `virt`, which must lie in the image.
    pub(crate) const fn physical(&self, virt: u64) -> u64 {
        virt - self.start + self.phys
    }
}

/// The value of [`Image::phys`], once it is set.
static IMAGE_AT: AtomicU64 = AtomicU64::new(0);

/// Sets the physical address at which the loader has put the image.
pub(crate) fn set_image_place(phys: u64) {
    IMAGE_AT.store(phys, Ordering::Relaxed);
}

/// Returns the addresses of the kernel image.
pub(crate) fn image() -> Image {
    Image {
        start: (&raw const __image_start) as u64,
        text_end: (&raw const __text_end) as u64,
        rodata_end: (&raw const __rodata_end) as u64,
        end: (&raw const __image_end) as u64,
        phys: IMAGE_AT.load(Ordering::Relaxed),
    }
}

/// Returns the parts of the image that nothing changes: the text and the read-only data, whole pages.
pub(crate) fn constant_parts() -> [&'static [u8]; 2] {
    let Image { start, text_end, rodata_end, .. } = image();
    [(start, text_end), (text_end, rodata_end)].map(|(start, end)| {
        // SAFETY: the image is mapped and readable as long as the kernel runs, and these parts are
        // not writable.
        unsafe { core::slice::from_raw_parts(start as *const u8, (end - start) as usize) }
    })
}

/// Returns the address of `phys` in the direct map.
#[inline]
pub(crate) fn phys_to_virt(phys: PhysAddr) -> *mut u8 {
    (DIRECT_MAP + phys.as_u64()) as *mut u8
}

/// Returns the physical address behind a virtual one of this kernel: in the image, the direct map (which
/// contains the heap and the frames) or a stack. Returns `None` if nothing is mapped there.
pub(crate) fn virt_to_phys(virt: *const u8) -> Option<PhysAddr> {
    let addr = virt as u64;
    if (DIRECT_MAP..DIRECT_MAP + DIRECT_MAP_BYTES).contains(&addr) {
        return Some(PhysAddr::new_truncate(addr - DIRECT_MAP));
    }
    let image = image();
    if (image.start..image.end).contains(&addr) {
        return Some(PhysAddr::new_truncate(image.physical(addr)));
    }
    paging::translate(VirtAddr::new_truncate(addr))
}

/// Returns true if the page at `virt` is mapped. Takes no lock.
pub(crate) fn is_mapped(virt: *const u8) -> bool {
    paging::translate(VirtAddr::new_truncate(virt as u64)).is_some()
}

/// Passes RAM to the frame allocator. The boot page tables are still in use. The heap works from here on.
///
/// # Safety
/// The boot processor calls this once, with the memory map of this machine.
pub(crate) unsafe fn init_frames(boot: &BootInfo) {
    let image = image();
    let low = Region::new(0, 1 << 20);
    let kernel = Region::new(image.phys, image.end - image.start);
    // SAFETY: the loader reports this as RAM, and the image, the first MiB and the modules are excluded.
    unsafe { frames::init(&boot.ram, [low, kernel].into_iter().chain(boot.modules.iter())) };
}

/// Builds the final page tables and switches to them, and determines which memory can be lent.
///
/// # Safety
/// The boot processor calls this once, after [`init_frames`].
pub(crate) unsafe fn init_paging(boot: &BootInfo, cpus: usize) {
    // SAFETY: the caller's promise.
    unsafe { paging::init(boot.ram.iter(), cpus as u64) };
    lent::init();
}

/// Makes each processor allocate from the NUMA node nearest to it. Call once, after [`init_paging`].
pub(crate) fn set_numa(numa: &Numa) {
    if numa.nodes() < 2 {
        return;
    }
    let nearest = |node| numa.nearest(node).into_iter().flat_map(|node| numa.memory_of(node)).collect();
    frames::set_nodes((0..numa.nodes()).map(nearest).collect(), &lent::covered().ranges);
}

/// Maps `len` bytes of device registers at `phys`, uncached, and returns their address. To map the same range
/// twice is harmless.
///
/// # Errors
/// Fails if the range is beyond the direct map, or overlaps RAM.
pub(crate) fn map_device(phys: PhysAddr, len: u64) -> Result<*mut u8, paging::MapError> {
    let start = phys.as_u64() & !(PAGE - 1);
    let end = phys.as_u64().checked_add(len).and_then(|e| e.checked_next_multiple_of(PAGE));
    let end = end.filter(|e| *e <= DIRECT_MAP_BYTES).ok_or(paging::MapError::OutOfRange)?;
    if frames::overlaps_ram(start, end) {
        return Err(paging::MapError::IsRam);
    }
    paging::map(
        VirtAddr::new_truncate(DIRECT_MAP + start),
        PhysAddr::new_truncate(start),
        end - start,
        Rights::Device,
    )?;
    Ok(phys_to_virt(phys))
}
