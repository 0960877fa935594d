//! The frame allocator: physically contiguous runs of 4 KiB frames, in two bitmaps (used frames; first frames
//! of runs), which are written as memory is used ([`platform::bitmaps`]).
//!
//! It takes the first run that fits: on a machine with NUMA nodes from the nearest node, otherwise from the
//! lowest address. A run is freed whole or not at all: the second bitmap knows where each begins and so where
//! it ends.

use alloc::vec::Vec;
use core::ops::Range;
use core::slice;
use firmware::ranges::Spans;
use platform::bitmaps::{Bitmaps, CHUNK, CHUNK_WORDS, Chunk};
use spin::{Mutex, MutexGuard};
use x86_64::PhysAddr;

use super::{DIRECT_MAP, PAGE};
use crate::arch;
use crate::boot::{MAX_RAM, RamMap, Region};
use crate::sync::IrqMutex;

/// The maximum length of a run, in frames (16 TiB). Longer ones are refused.
const MAX_RUN: u64 = 1 << 32;

/// The state of the allocator; sizes in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    /// The RAM that the allocator manages.
    #[cfg_attr(not(feature = "selftest"), expect(dead_code, reason = "only self-tests read it"))]
    pub total: u64,
    /// The number of free bytes.
    #[cfg_attr(not(feature = "selftest"), expect(dead_code, reason = "only self-tests read it"))]
    pub free: u64,
    /// The length of the longest free run, in bytes.
    pub largest_free: u64,
}

struct Frames {
    bitmaps: Bitmaps<'static>,
    total: u64,
    free: u64,
    /// A lower bound of the free frames: no frame below it is free.
    hint: u64,
    /// The ranges of frames that can be lent, and the number of free frames among them.
    lendable: &'static [Range<u64>],
    lendable_free: u64,
    /// The least value of `lendable_free` since it was last asked for.
    lendable_least: u64,
}

static FRAMES: IrqMutex<Frames> = IrqMutex::new(Frames {
    bitmaps: Bitmaps::new(&mut [], &mut [], &mut []),
    total: 0,
    free: 0,
    hint: 0,
    lendable: &[],
    lendable_free: 0,
    lendable_least: 0,
});

/// The RAM, in whole frames. [`overlaps_ram`] uses it.
static RAM: Mutex<Spans<MAX_RAM>> = Mutex::new(Spans::new());

/// The ranges of frames in which a processor of a node allocates, the nearest first; for memory that is lent,
/// and for other memory. Empty on a machine without NUMA nodes.
struct Nearest {
    all: Vec<Range<u64>>,
    lendable: Vec<Range<u64>>,
}

static NEAREST: spin::Once<Vec<Nearest>> = spin::Once::new();

impl Frames {
    /// Returns the first free run of `count` frames that begins at a multiple of `align`, not before `from`,
    /// and ends at or before `below`.
    fn find(&self, count: u64, align: u64, from: u64, below: u64) -> Option<u64> {
        let mut at = self.hint.max(from);
        loop {
            at = self.bitmaps.next_free(at).next_multiple_of(align);
            let end = at.checked_add(count)?;
            if end > below.min(self.bitmaps.frames()) {
                return None;
            }
            let used = self.bitmaps.next_taken(at);
            if used >= end {
                return Some(at);
            }
            at = used;
        }
    }

    fn alloc(&mut self, count: u64, align: u64, below: u64) -> Option<u64> {
        if count == 0 || count > MAX_RUN || count > self.free {
            return None;
        }
        let at = self.find(count, align, 0, below)?;
        self.take(at, count);
        if align == 1 && count == 1 {
            self.hint = at + 1;
        }
        Some(at)
    }

    /// Allocates as [`alloc`](Self::alloc) does, wholly within one of `ranges` of frames.
    fn alloc_among(
        &mut self,
        count: u64,
        align: u64,
        mut ranges: impl Iterator<Item = Range<u64>>,
    ) -> Option<u64> {
        if count == 0 || count > MAX_RUN || count > self.free {
            return None;
        }
        let at = ranges.find_map(|range| self.find(count, align, range.start, range.end))?;
        self.take(at, count);
        Some(at)
    }

    /// Marks a free run as used.
    fn take(&mut self, at: u64, count: u64) {
        self.bitmaps.take(at..at + count);
        self.free -= count;
        self.lendable_free -= self.lendable_among(at, count);
        self.lendable_least = self.lendable_least.min(self.lendable_free);
    }

    /// Returns the number of frames of a run that can be lent.
    fn lendable_among(&self, at: u64, count: u64) -> u64 {
        let common = |range: &Range<u64>| range.end.min(at + count).saturating_sub(range.start.max(at));
        self.lendable.iter().map(common).sum()
    }

    fn free(&mut self, at: u64, count: u64) -> Result<(), &'static str> {
        let end = at.checked_add(count).ok_or("the run is too long")?;
        if !self.bitmaps.is_first(at) || end > self.bitmaps.frames() {
            return Err("no run begins there");
        }
        // The run extends to the next run's first frame or to the next free frame. RAM that was never
        // allocated (reserved) has no first bit, so a run that ends right before such RAM is checked only for
        // not being longer.
        let length = self.bitmaps.next_first(at + 1).min(self.bitmaps.next_free(at + 1)) - at;
        if count > length {
            return Err("the run is shorter");
        }
        if count < length && self.bitmaps.next_taken(end) == end && !self.reserved(end) {
            return Err("the run is longer");
        }
        self.bitmaps.release(at..end);
        self.free += count;
        self.lendable_free += self.lendable_among(at, count);
        self.hint = self.hint.min(at);
        Ok(())
    }

    /// Returns whether the used frame `at` was never allocated.
    fn reserved(&self, at: u64) -> bool {
        let addr = at * PAGE;
        !managed(addr, addr + PAGE)
    }
}

/// The regions that the allocator manages: RAM without the regions that were reserved at the start.
static MANAGED: Mutex<Spans<MAX_RAM>> = Mutex::new(Spans::new());

/// The regions of RAM, once they are known.
struct Regions {
    ram: &'static Spans<MAX_RAM>,
    managed: &'static Spans<MAX_RAM>,
}

static REGIONS: spin::Once<Regions> = spin::Once::new();

fn managed(start: u64, end: u64) -> bool {
    REGIONS.get().is_some_and(|r| r.managed.spans().iter().any(|s| s.start <= start && end <= s.end))
}

/// Returns whether `start..end` overlaps RAM of the memory map.
pub(crate) fn overlaps_ram(start: u64, end: u64) -> bool {
    REGIONS.get().is_some_and(|r| r.ram.spans().iter().any(|s| s.start < end && start < s.end))
}

/// Returns the number of frames for which the bitmaps have a bit.
pub(crate) fn end() -> u64 {
    FRAMES.lock().bitmaps.frames()
}

/// Returns the regions of RAM from which runs are allocated.
pub(crate) fn ram() -> impl Iterator<Item = Region> {
    let spans = REGIONS.get().into_iter().flat_map(|r| r.managed.spans());
    spans.map(|s| Region::new(s.start, s.len()))
}

/// Takes over all of `ram` except `reserved`. The bitmaps are placed in that RAM.
///
/// # Safety
/// The caller calls this once. `ram` is RAM, and only `reserved` in it is in use. RAM below 4 GiB is mapped
/// in the direct map.
pub(crate) unsafe fn init(ram: &RamMap, reserved: impl Iterator<Item = Region>) {
    let whole = MutexGuard::leak(RAM.lock());
    let free = MutexGuard::leak(MANAGED.lock());
    for r in ram.iter() {
        let (start, end) = (r.start.as_u64().next_multiple_of(PAGE), r.end.as_u64() & !(PAGE - 1));
        whole.add(start, end);
        free.add(start, end);
    }
    for r in reserved {
        free.remove(r.start.as_u64() & !(PAGE - 1), r.end.as_u64().next_multiple_of(PAGE));
    }
    let top = whole.spans().last().map_or(0, |s| s.end);
    // The bitmaps go to the first address with room that is already mapped at this point of the boot.
    let chunks = (top / PAGE).div_ceil(CHUNK);
    let words = chunks * CHUNK_WORDS;
    let bytes = (words * 16 + chunks).next_multiple_of(PAGE);
    let at = free.spans().iter().find(|s| s.len() >= bytes && s.start + bytes <= 4 << 30);
    let at = at.expect("no room for the frame bitmaps").start;
    free.remove(at, at + bytes);
    let base = (DIRECT_MAP + at) as *mut u64;
    let len = words as usize;
    // SAFETY: `bytes` bytes at `at` are free RAM, mapped, and used by nothing else. Any bits are words, and
    // zeros are `Chunk::Absent`.
    let mut bitmaps = unsafe {
        let states = base.add(2 * len).cast::<Chunk>();
        states.write_bytes(0, chunks as usize);
        Bitmaps::new(
            slice::from_raw_parts_mut(base, len),
            slice::from_raw_parts_mut(base.add(len), len),
            slice::from_raw_parts_mut(states, chunks as usize),
        )
    };
    let mut total = 0;
    for s in free.spans() {
        bitmaps.add(s.start / PAGE..s.end / PAGE);
        total += s.len() / PAGE;
    }
    REGIONS.call_once(|| Regions { ram: whole, managed: free });
    let mut frames = FRAMES.lock();
    (frames.bitmaps, frames.total, frames.free) = (bitmaps, total, total);
}

/// Sets, once, the memory of NUMA nodes: for each node, ranges of physical addresses, the nearest first. From
/// now on a processor allocates from them in that order.
pub(crate) fn set_nodes(nodes: Vec<Vec<Range<u64>>>, lendable: &[Range<u64>]) {
    let managed: Vec<_> = ram().map(|r| r.start.as_u64()..r.end.as_u64()).collect();
    let within = |ranges: &[Range<u64>], memory: &[Range<u64>]| -> Vec<Range<u64>> {
        let common = |a: &Range<u64>, b: &Range<u64>| a.start.max(b.start)..a.end.min(b.end);
        let parts = ranges.iter().flat_map(|r| memory.iter().map(move |m| common(r, m)));
        let frames = parts.map(|r| r.start.div_ceil(PAGE)..r.end / PAGE);
        frames.filter(|r| r.start < r.end).collect()
    };
    let nearest = |ranges: Vec<Range<u64>>| Nearest {
        all: within(&ranges, &managed),
        lendable: within(&ranges, lendable),
    };
    let nearest = nodes.into_iter().map(nearest).collect();
    NEAREST.call_once(|| nearest);
}

/// Allocates `bytes` (rounded up to frames) contiguous bytes, aligned to 4096 and not zeroed. Returns `None`
/// if no such run is free.
pub(crate) fn alloc(bytes: u64) -> Option<PhysAddr> {
    alloc_on(arch::this_cpu_node(), bytes)
}

/// Allocates as [`alloc()`] does, from the NUMA node `node` if it has such a run, otherwise from the nearest
/// node that has.
pub(crate) fn alloc_on(node: usize, bytes: u64) -> Option<PhysAddr> {
    if let Some(nearest) = NEAREST.get().and_then(|nodes| nodes.get(node)) {
        let at = FRAMES.lock().alloc_among(bytes.div_ceil(PAGE), 1, nearest.all.iter().cloned());
        if let Some(at) = at {
            return Some(PhysAddr::new_truncate(at * PAGE));
        }
    }
    alloc_within(bytes, PAGE, u64::MAX)
}

/// Allocates as [`alloc()`] does, aligned to `align` (a power of two) and wholly below the physical address
/// `below`.
pub(crate) fn alloc_within(bytes: u64, align: u64, below: u64) -> Option<PhysAddr> {
    let align = align.max(PAGE) / PAGE;
    let at = FRAMES.lock().alloc(bytes.div_ceil(PAGE), align, below / PAGE)?;
    Some(PhysAddr::new_truncate(at * PAGE))
}

/// Allocates as [`alloc()`] does, and zeroes the run.
pub(crate) fn alloc_zeroed(bytes: u64) -> Option<PhysAddr> {
    let at = alloc(bytes)?;
    // SAFETY: nothing else uses the run, and it is mapped in the direct map.
    unsafe { super::phys_to_virt(at).write_bytes(0, bytes.next_multiple_of(PAGE) as usize) };
    Some(at)
}

/// Frees a run. `bytes` must be the length with which it was allocated.
///
/// # Panics
/// If that run is not allocated.
pub(crate) fn free(at: PhysAddr, bytes: u64) {
    assert!(at.is_aligned(PAGE), "freed frame address {at:?} is not aligned");
    let result = FRAMES.lock().free(at.as_u64() / PAGE, bytes.div_ceil(PAGE));
    if let Err(why) = result {
        panic!("cannot free {bytes} bytes at {at:?}: {why}");
    }
}

/// Allocates as [`alloc_within`] does, in memory that can be lent: from the nearest node that has such a run,
/// otherwise anywhere.
pub(crate) fn alloc_lendable(bytes: u64, align: u64) -> Option<PhysAddr> {
    let (count, align) = (bytes.div_ceil(PAGE), align.max(PAGE) / PAGE);
    let nearest = NEAREST.get().and_then(|nodes| nodes.get(arch::this_cpu_node()));
    let mut frames = FRAMES.lock();
    let near = nearest.and_then(|n| frames.alloc_among(count, align, n.lendable.iter().cloned()));
    let all = frames.lendable;
    let at = near.or_else(|| frames.alloc_among(count, align, all.iter().cloned()))?;
    Some(PhysAddr::new_truncate(at * PAGE))
}

/// Returns the amount of free RAM. The time is proportional to the memory: not for the data path.
#[cfg(any(feature = "selftest", feature = "heap-linked-list"))]
pub(crate) fn stats() -> Stats {
    count(ram().map(|r| r.start.as_u64() / PAGE..r.end.as_u64() / PAGE))
}

/// Counts the frames in `ranges` of physical addresses, and the free ones among them. The time is
/// proportional to the memory: not for the data path.
pub(crate) fn stats_among(ranges: &[Range<u64>]) -> Stats {
    count(ranges.iter().map(|range| range.start / PAGE..range.end / PAGE))
}

/// The number of frames to count under the lock at a time: a few microseconds with interrupts masked.
const COUNT_STEP: u64 = 1 << 17;

/// Counts frames, a part at a time, so that other processors can take the lock in between. Frames that they
/// allocate or free meanwhile may be counted or not.
fn count(ranges: impl Iterator<Item = Range<u64>>) -> Stats {
    let (mut total, mut free, mut largest) = (0, 0, 0);
    for range in ranges {
        total += range.end - range.start;
        // The number of free frames right before `at`.
        let (mut at, mut run) = (range.start, 0);
        while at < range.end {
            let end = (at + COUNT_STEP).min(range.end);
            let frames = FRAMES.lock();
            while at < end {
                let taken = frames.bitmaps.next_taken(at).min(end);
                (free, run) = (free + taken - at, run + taken - at);
                largest = largest.max(run);
                at = taken;
                if at < end {
                    run = 0;
                    at = frames.bitmaps.next_free(at).min(end);
                }
            }
        }
    }
    Stats { total: total * PAGE, free: free * PAGE, largest_free: largest * PAGE }
}

/// Returns the total and the free bytes, in constant time (without the longest free run).
pub(crate) fn totals() -> (u64, u64) {
    let frames = FRAMES.lock();
    (frames.total * PAGE, frames.free * PAGE)
}

/// Sets, once, the frames that can be lent. From now on the free ones among them are counted.
pub(crate) fn set_lendable(ranges: &'static [Range<u64>]) {
    let mut frames = FRAMES.lock();
    let mut free = 0;
    for range in ranges {
        let mut at = frames.bitmaps.next_free(range.start);
        while at < range.end {
            let taken = frames.bitmaps.next_taken(at).min(range.end);
            free += taken - at;
            at = frames.bitmaps.next_free(taken);
        }
    }
    (frames.lendable, frames.lendable_free, frames.lendable_least) = (ranges, free, free);
}

/// Returns the total and the free bytes that can be lent, in constant time (without the longest free run).
pub(crate) fn lendable_totals() -> (u64, u64) {
    let frames = FRAMES.lock();
    let total: u64 = frames.lendable.iter().map(|range| range.end - range.start).sum();
    (total * PAGE, frames.lendable_free * PAGE)
}

/// Returns the least amount of free memory that can be lent since the last call of this, in bytes.
pub(crate) fn take_least_lendable() -> u64 {
    let mut frames = FRAMES.lock();
    let now = frames.lendable_free;
    core::mem::replace(&mut frames.lendable_least, now) * PAGE
}
