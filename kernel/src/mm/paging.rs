//! Page tables: built once, W^X, and read-only themselves in the direct map. They are changed with CR0.WP cleared for a
//! few instructions, under a lock that masks interrupts.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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

/// Frames taken at a time for page tables.
const POOL_FRAMES: u64 = 64;
/// Most such runs.
const MAX_POOLS: usize = 64;

/// What may be done with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Read and execute.
    Text,
    /// Read.
    ReadOnly,
    /// Read and write.
    Data,
    /// Read and write device registers: uncached.
    Device,
    /// Write to a device, in long writes that the processor makes of several (see [`cpu::init_memory_types`]).
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

/// Why a mapping was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// Beyond the room of the direct map.
    OutOfRange,
    /// The range overlaps RAM.
    IsRam,
    /// No frame for a page table.
    OutOfMemory,
    /// Something else is mapped there.
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
    pool: PhysAddr,
    pool_left: u64,
    /// The final tables are in use, so they are read-only where they are mapped.
    live: bool,
    /// 1 GiB pages are available.
    huge: bool,
}

static TABLES: IrqMutex<PageTables> = IrqMutex::new(PageTables {
    root: PhysAddr::zero(),
    pool: PhysAddr::zero(),
    pool_left: 0,
    live: false,
    huge: false,
});

/// Runs of frames that hold page tables: nothing but this module may write there.
static POOLS: [AtomicU64; MAX_POOLS] = [const { AtomicU64::new(0) }; MAX_POOLS];
static POOL_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The runs of physical memory that hold page tables.
pub fn pools() -> impl Iterator<Item = Region> {
    let count = POOL_COUNT.load(Ordering::Acquire);
    POOLS.iter().take(count).map(|p| Region::new(p.load(Ordering::Relaxed), POOL_FRAMES * PAGE))
}

/// Runs `f` with write protection off, interrupts masked.
fn writing<R>(f: impl FnOnce() -> R) -> R {
    let on = cpu::interrupts_off();
    // SAFETY: only page tables are written meanwhile, by `f`.
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
    /// A zeroed frame for a table.
    fn frame(&mut self) -> Result<PhysAddr, MapError> {
        if self.pool_left == 0 {
            self.grow()?;
        }
        let frame = self.pool;
        self.pool += PAGE;
        self.pool_left -= 1;
        for i in 0..512 {
            // SAFETY: the frame is from the pool and not in use.
            write(unsafe { phys_to_virt(frame).cast::<u64>().add(i) }, 0);
        }
        Ok(frame)
    }

    fn grow(&mut self) -> Result<(), MapError> {
        let count = POOL_COUNT.load(Ordering::Relaxed);
        let bytes = POOL_FRAMES * PAGE;
        let slot = POOLS.get(count).ok_or(MapError::OutOfMemory)?;
        // Below 4 GiB: the boot map shows no more, and processors that start load CR3 in 32 bits. Aligned to its size,
        // so that a pool never straddles two large pages of the direct map.
        let run = frames::alloc_within(bytes, bytes, 4 << 30).ok_or(MapError::OutOfMemory)?;
        slot.store(run.as_u64(), Ordering::Relaxed);
        POOL_COUNT.store(count + 1, Ordering::Release);
        self.pool = run;
        self.pool_left = POOL_FRAMES;
        if self.live {
            // Splitting takes at most two tables, out of the new pool. Other processors may keep a writable
            // translation for a while; that only delays a protection.
            self.protect(DIRECT_MAP + run.as_u64(), bytes, Rights::ReadOnly)?;
        }
        Ok(())
    }

    /// The entry that maps `virt` at `level`, with tables made and large pages split on the way.
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
                    // SAFETY: `new` is a fresh table.
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

    /// The largest level (0: 4 KiB, 1: 2 MiB, 2: 1 GiB) of a page that fits.
    fn level_for(&self, virt: u64, phys: u64, left: u64) -> u32 {
        let top = if self.huge { 2 } else { 1 };
        (1..=top)
            .rev()
            .find(|l| (virt | phys) & ((PAGE << (9 * l)) - 1) == 0 && left >= PAGE << (9 * l))
            .unwrap_or(0)
    }

    /// Tables that mapping one page may take; kept in stock so that nothing fails half-way.
    fn reserve(&mut self) -> Result<(), MapError> {
        if self.pool_left < 8 {
            // What is left of the old pool is lost: at most 7 frames.
            self.grow()?;
        }
        Ok(())
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
                // A table is there: go on below it, page by page.
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

    /// Changes the rights of what is mapped at `virt` (whole 4 KiB pages).
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

/// Builds the final tables for `ram` and the kernel image and loads them.
///
/// # Safety
/// Once, by the boot processor, after the frame allocator's start, with nothing in use outside `ram` and the image.
pub unsafe fn init(ram: impl Iterator<Item = Region>) {
    let image = image();
    let mut t = TABLES.lock();
    t.huge = cpu::bit(cpu::cpuid(0x8000_0001, 0).edx, 26);
    let build = |t: &mut PageTables| -> Result<(), MapError> {
        t.root = t.frame()?;
        t.map(image.start, image.start, image.text_end - image.start, Rights::Text)?;
        t.map(image.text_end, image.text_end, image.rodata_end - image.text_end, Rights::ReadOnly)?;
        t.map(image.rodata_end, image.rodata_end, image.end - image.rodata_end, Rights::Data)?;
        for r in ram {
            let start = r.start.as_u64().next_multiple_of(PAGE);
            let end = (r.end.as_u64() & !(PAGE - 1)).min(super::DIRECT_MAP_BYTES);
            if start < end {
                t.map(DIRECT_MAP + start, start, end - start, Rights::Data)?;
            }
        }
        t.protect(DIRECT_MAP + image.start, image.rodata_end - image.start, Rights::ReadOnly)?;
        // The pools last: protecting them may take tables, and another pool.
        let mut done = 0;
        while done < POOL_COUNT.load(Ordering::Relaxed) {
            let pool = DIRECT_MAP + POOLS[done].load(Ordering::Relaxed);
            t.protect(pool, POOL_FRAMES * PAGE, Rights::ReadOnly)?;
            done += 1;
        }
        Ok(())
    };
    if let Err(e) = build(&mut t) {
        panic!("cannot build page tables: {e}");
    }
    t.live = true;
    // SAFETY: the new tables map image, stack (in the image) and all RAM as the old ones did, with fewer rights.
    unsafe { load(t.root) };
}

/// Loads the tables at `root`.
unsafe fn load(root: PhysAddr) {
    // SAFETY: the caller's promise that these are complete tables.
    unsafe { Cr3::write(PhysFrame::containing_address(root), Cr3Flags::empty()) };
}

/// Where the root table is: below 4 GiB.
pub fn root() -> PhysAddr {
    TABLES.lock().root
}

/// Maps `len` bytes (whole pages). What is there already with the same target and rights stays.
pub fn map(virt: VirtAddr, phys: PhysAddr, len: u64, rights: Rights) -> Result<(), MapError> {
    let mut t = TABLES.lock();
    writing(|| t.map(virt.as_u64(), phys.as_u64(), len, rights))
}

/// Changes the rights of `len` mapped bytes (whole pages), on this processor at once, on others when they next flush.
pub fn protect(virt: VirtAddr, len: u64, rights: Rights) -> Result<(), MapError> {
    let mut t = TABLES.lock();
    writing(|| {
        t.reserve()?;
        t.protect(virt.as_u64(), len, rights)
    })
}

/// Takes `len` bytes (whole pages) out of the map, on this processor at once, on others when they next flush.
pub fn unmap(virt: VirtAddr, len: u64) -> Result<(), MapError> {
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

/// The physical address that `virt` maps to. Takes no lock: usable in a fault handler.
pub fn translate(virt: VirtAddr) -> Option<PhysAddr> {
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
