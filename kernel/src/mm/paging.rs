//! Page tables: built once, W^X, and themselves read-only in the direct map. They are changed with CR0.WP
//! cleared for a few instructions, under a lock that masks interrupts.
//!
//! All tables lie in one run of frames, which is reserved before the first table is made. So no memory
//! becomes a table later, when other processors may still have translations that make it writable, or peers
//! may have been lent it.

use x86_64::registers::control::{Cr0, Cr0Flags, Cr3, Cr3Flags};
use x86_64::structures::paging::PhysFrame;
use x86_64::{PhysAddr, VirtAddr, instructions::tlb};

use super::{DIRECT_MAP, PAGE, frames, image, phys_to_virt};
use crate::arch::cpu;
use crate::boot::Region;
use crate::sync::IrqMutex;

const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const WRITE_THROUGH: u64 = 1 << 3;
const NO_CACHE: u64 = 1 << 4;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The number of tables for device registers, for large pages that are split, and for all other mappings of
/// the kernel.
const TABLES_OF_KERNEL: u64 = 128;
/// The number of tables for the stacks of a processor: it has 4 MiB of addresses, and those of two processors
/// may be apart.
const TABLES_OF_CPU: u64 = 2;
/// The number of page tables that mapping one page may need.
const SPARE: u64 = 8;

/// The access rights of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Code can be read and executed.
    Text,
    /// Data can be read.
    ReadOnly,
    /// Data can be read and written.
    Data,
    /// Registers of a device can be read and written, uncached.
    Device,
    /// Memory of a device can be written. The processor combines writes to longer ones (see
    /// [`cpu::init_memory_types`]).
    Combining,
}

impl Rights {
    const fn bits(self) -> u64 {
        PRESENT
            | match self {
                Self::Text => 0,
                Self::ReadOnly => NO_EXECUTE,
                Self::Data => WRITE | NO_EXECUTE,
                Self::Device => WRITE | NO_EXECUTE | WRITE_THROUGH | NO_CACHE,
                Self::Combining => WRITE | NO_EXECUTE | WRITE_THROUGH,
            }
    }
}

/// The reason why a mapping was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapError {
    /// The range is beyond the direct map.
    OutOfRange,
    /// The range overlaps RAM.
    IsRam,
    /// There is no frame for a page table.
    OutOfMemory,
    /// Another mapping occupies the virtual range.
    Occupied,
}

impl core::fmt::Display for MapError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::OutOfRange => "address beyond the direct map",
            Self::IsRam => "range overlaps RAM",
            Self::OutOfMemory => "no memory for page tables",
            Self::Occupied => "range is mapped already",
        })
    }
}

struct PageTables {
    root: PhysAddr,
    /// The next free frame for a table, and the number of free frames.
    next: PhysAddr,
    left: u64,
    /// True if 1 GiB pages are available.
    huge: bool,
}

static TABLES: IrqMutex<PageTables> =
    IrqMutex::new(PageTables { root: PhysAddr::zero(), next: PhysAddr::zero(), left: 0, huge: false });

/// The run of frames that holds the page tables. Only this module may write there.
static RUN: spin::Once<Region> = spin::Once::new();

/// Returns the physical memory that holds the page tables. It never changes.
///
/// # Panics
/// If called before [`init`].
pub(crate) fn tables() -> Region {
    *RUN.get().expect("page tables before their memory was set aside")
}

/// Runs `f` with write protection off and interrupts masked.
fn writing<R>(f: impl FnOnce() -> R) -> R {
    let on = cpu::interrupts_off();
    // SAFETY: only `f` runs meanwhile, and it writes only to page tables.
    unsafe { Cr0::update(|flags| flags.remove(Cr0Flags::WRITE_PROTECT)) };
    let result = f();
    // SAFETY: as before.
    unsafe { Cr0::update(|flags| flags.insert(Cr0Flags::WRITE_PROTECT)) };
    cpu::interrupts_restore(on);
    result
}

fn entry(table: PhysAddr, virt: u64, level: u32) -> *mut u64 {
    let index = (virt >> (12 + 9 * level) & 511) as usize;
    // SAFETY: a table is one frame of 512 entries, and `index` is below 512.
    unsafe { phys_to_virt(table).cast::<u64>().add(index) }
}

fn read(at: *mut u64) -> u64 {
    // SAFETY: `at` came from `entry`: part of a page table in the direct map.
    unsafe { at.read_volatile() }
}

fn write(at: *mut u64, value: u64) {
    // SAFETY: as `read`; write protection is off, or the tables are not in use yet.
    unsafe { at.write_volatile(value) };
}

impl PageTables {
    /// Reserves the memory of all tables.
    fn set_aside(&mut self, count: u64) -> Result<Region, MapError> {
        // The run is below 4 GiB: the boot page tables map no more, and processors that start load CR3 in 32
        // bits.
        let run = frames::alloc_within(count * PAGE, PAGE, 4 << 30).ok_or(MapError::OutOfMemory)?;
        (self.next, self.left) = (run, count);
        Ok(Region::new(run.as_u64(), count * PAGE))
    }

    /// Returns a zeroed frame for a table.
    fn frame(&mut self) -> Result<PhysAddr, MapError> {
        self.left = self.left.checked_sub(1).ok_or(MapError::OutOfMemory)?;
        let frame = self.next;
        self.next += PAGE;
        for i in 0..512 {
            // SAFETY: the frame was reserved for tables and is not in use.
            write(unsafe { phys_to_virt(frame).cast::<u64>().add(i) }, 0);
        }
        Ok(frame)
    }

    /// Returns the entry that maps `virt` at `level`. Makes tables and splits large pages on the way.
    fn descend(&mut self, virt: u64, level: u32) -> Result<*mut u64, MapError> {
        let mut table = self.root;
        for at in (level + 1..4).rev() {
            let slot = entry(table, virt, at);
            let old = read(slot);
            if old & PRESENT == 0 {
                let new = self.frame()?;
                write(slot, new.as_u64() | PRESENT | WRITE);
                table = new;
            } else if at < 3 && old & LARGE != 0 {
                let new = self.frame()?;
                let step = PAGE << (9 * (at - 1));
                let flags = old & !ADDRESS & if at == 1 { !LARGE } else { !0 };
                for i in 0..512 {
                    // SAFETY: `new` is a table that is not in use yet.
                    let to = unsafe { phys_to_virt(new).cast::<u64>().add(i as usize) };
                    write(to, ((old & ADDRESS) + i * step) | flags);
                }
                write(slot, new.as_u64() | PRESENT | WRITE);
                table = new;
            } else {
                table = PhysAddr::new_truncate(old & ADDRESS);
            }
        }
        Ok(entry(table, virt, level))
    }

    /// Returns the largest level (0: 4 KiB, 1: 2 MiB, 2: 1 GiB) of a page that fits.
    fn level_for(&self, virt: u64, phys: u64, left: u64) -> u32 {
        let top = if self.huge { 2 } else { 1 };
        (1..=top)
            .rev()
            .find(|l| (virt | phys) & ((PAGE << (9 * l)) - 1) == 0 && left >= PAGE << (9 * l))
            .unwrap_or(0)
    }

    /// Refuses an operation that could run out of tables half-way.
    const fn reserve(&self) -> Result<(), MapError> {
        if self.left < SPARE { Err(MapError::OutOfMemory) } else { Ok(()) }
    }

    fn map(&mut self, virt: u64, phys: u64, len: u64, rights: Rights) -> Result<(), MapError> {
        let mut done = 0;
        while done < len {
            self.reserve()?;
            let level = self.level_for(virt + done, phys + done, len - done);
            let size = PAGE << (9 * level);
            let large = if level > 0 { LARGE } else { 0 };
            let new = (phys + done) | rights.bits() | large;
            let slot = self.descend(virt + done, level)?;
            let old = read(slot);
            let accessed_dirty = 0x60;
            if old & PRESENT == 0 {
                write(slot, new);
            } else if level > 0 && old & LARGE == 0 {
                // A table exists here: continue below it, page by page.
                self.map_small(virt + done, phys + done, size, rights)?;
            } else if old & !accessed_dirty != new {
                return Err(MapError::Occupied);
            }
            done += size;
        }
        Ok(())
    }

    fn map_small(&mut self, virt: u64, phys: u64, len: u64, rights: Rights) -> Result<(), MapError> {
        for at in (0..len).step_by(PAGE as usize) {
            self.reserve()?;
            let slot = self.descend(virt + at, 0)?;
            write(slot, (phys + at) | rights.bits());
        }
        Ok(())
    }

    /// Changes the rights of the mapping at `virt` (whole 4 KiB pages).
    fn protect(&mut self, virt: u64, len: u64, rights: Rights) -> Result<(), MapError> {
        for at in (virt..virt + len).step_by(PAGE as usize) {
            let slot = self.descend(at, 0)?;
            let old = read(slot);
            write(slot, (old & ADDRESS) | rights.bits());
            tlb::flush(VirtAddr::new_truncate(at));
        }
        Ok(())
    }
}

/// Builds the final tables for `ram`, the kernel image and the stacks of `cpus` processors, and loads them.
///
/// # Safety
/// The boot processor calls this once, after the frame allocator has started, with nothing in use outside of
/// `ram` and the image.
pub(crate) unsafe fn init(ram: impl Iterator<Item = Region> + Clone, cpus: u64) {
    let image = image();
    let mut t = TABLES.lock();
    t.huge = cpu::bit(cpu::cpuid(0x8000_0001, 0).edx, 26);
    // A table maps 1 GiB with large pages, and each of the two levels above has one table for 512 of those.
    let of_ram: u64 = ram.clone().map(|r| (r.len() >> 30) + (r.len() >> 39) + 6).sum();
    let build = |t: &mut PageTables| -> Result<(), MapError> {
        let run = t.set_aside(of_ram + cpus * TABLES_OF_CPU + TABLES_OF_KERNEL)?;
        RUN.call_once(|| run);
        t.root = t.frame()?;
        let mut part = |from: u64, to, rights| t.map(from, image.physical(from), to - from, rights);
        part(image.start, image.text_end, Rights::Text)?;
        part(image.text_end, image.rodata_end, Rights::ReadOnly)?;
        part(image.rodata_end, image.end, Rights::Data)?;
        for r in ram {
            let start = r.start.as_u64().next_multiple_of(PAGE);
            let end = (r.end.as_u64() & !(PAGE - 1)).min(super::DIRECT_MAP_BYTES);
            if start < end {
                t.map(DIRECT_MAP + start, start, end - start, Rights::Data)?;
            }
        }
        t.protect(DIRECT_MAP + image.phys, image.rodata_end - image.start, Rights::ReadOnly)?;
        t.protect(DIRECT_MAP + run.start.as_u64(), run.len(), Rights::ReadOnly)
    };
    if let Err(e) = build(&mut t) {
        panic!("cannot build page tables: {e}");
    }
    // SAFETY: the new tables map the image, the stack (in the image) and all RAM as the old ones did, with
    // fewer rights.
    unsafe { load(t.root) };
}

/// Loads the tables at `root`.
unsafe fn load(root: PhysAddr) {
    // SAFETY: the caller's promise that these are complete tables.
    unsafe { Cr3::write(PhysFrame::containing_address(root), Cr3Flags::empty()) };
}

/// Returns the address of the root table, which is below 4 GiB.
pub(crate) fn root() -> PhysAddr {
    TABLES.lock().root
}

/// Maps `len` bytes (whole pages). An existing mapping with the same target and rights stays.
pub(crate) fn map(virt: VirtAddr, phys: PhysAddr, len: u64, rights: Rights) -> Result<(), MapError> {
    let mut t = TABLES.lock();
    writing(|| t.map(virt.as_u64(), phys.as_u64(), len, rights))
}

/// Changes the rights of `len` mapped bytes (whole pages): on this processor at once, on others with their
/// next flush.
pub(crate) fn protect(virt: VirtAddr, len: u64, rights: Rights) -> Result<(), MapError> {
    let mut t = TABLES.lock();
    writing(|| {
        t.reserve()?;
        t.protect(virt.as_u64(), len, rights)
    })
}

/// Unmaps `len` bytes (whole pages): on this processor at once, on others with their next flush.
pub(crate) fn unmap(virt: VirtAddr, len: u64) -> Result<(), MapError> {
    let mut t = TABLES.lock();
    writing(|| {
        for at in (virt.as_u64()..virt.as_u64() + len).step_by(PAGE as usize) {
            t.reserve()?;
            let slot = t.descend(at, 0)?;
            write(slot, 0);
            tlb::flush(VirtAddr::new_truncate(at));
        }
        Ok(())
    })
}

/// Returns the physical address to which `virt` maps. Takes no lock, so a fault handler may call it.
pub(crate) fn translate(virt: VirtAddr) -> Option<PhysAddr> {
    let mut table = Cr3::read().0.start_address();
    for level in (0..4).rev() {
        let e = read(entry(table, virt.as_u64(), level));
        if e & PRESENT == 0 {
            return None;
        }
        if level == 0 || e & LARGE != 0 && level < 3 {
            let mask = (PAGE << (9 * level)) - 1;
            return Some(PhysAddr::new_truncate((e & ADDRESS & !mask) | (virt.as_u64() & mask)));
        }
        table = PhysAddr::new_truncate(e & ADDRESS);
    }
    None
}
