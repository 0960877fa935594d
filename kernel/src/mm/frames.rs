//! The frame allocator: physically contiguous runs of 4 KiB frames, in two bitmaps (used frames; first frames
//! of runs).
//!
//! It takes the first run that fits, from the lowest address, a word of 64 frames at a time. A run is
//! freed whole or not at all: the second bitmap knows where each begins and so where it ends.

use core::ops::Range;
use core::slice;
use x86_64::PhysAddr;

use super::{DIRECT_MAP, PAGE};
use crate::boot::{Region, regions::Regions};
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
    /// A bit for each frame from physical address 0. It is set if the frame is used, or is not RAM.
    taken: &'static mut [u64],
    /// A bit for each frame. It is set if an allocated run begins there.
    first: &'static mut [u64],
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
    taken: &mut [],
    first: &mut [],
    total: 0,
    free: 0,
    hint: 0,
    lendable: &[],
    lendable_free: 0,
    lendable_least: 0,
});

/// The RAM, sorted, as the loader described it. [`ram`] and [`overlaps_ram`] use it.
static RAM: spin::Once<Regions> = spin::Once::new();

fn get(bits: &[u64], i: u64) -> bool {
    bits.get((i / 64) as usize).is_none_or(|w| w >> (i % 64) & 1 != 0)
}

fn set_range(bits: &mut [u64], start: u64, end: u64, value: bool) {
    let mut i = start;
    while i < end {
        let (word, shift) = ((i / 64) as usize, i % 64);
        let n = (64 - shift).min(end - i);
        let mask = if n == 64 { u64::MAX } else { ((1 << n) - 1) << shift };
        if let Some(w) = bits.get_mut(word) {
            *w = if value { *w | mask } else { *w & !mask };
        }
        i += n;
    }
}

/// Returns the first `i >= from` whose bit is `value`, or the length of `bits`.
fn next(bits: &[u64], from: u64, value: bool) -> u64 {
    let len = bits.len() as u64 * 64;
    let mut i = from;
    while let Some(w) = bits.get((i / 64) as usize) {
        let w = if value { *w } else { !*w } >> (i % 64);
        if w != 0 {
            return i + u64::from(w.trailing_zeros());
        }
        i = (i / 64 + 1) * 64;
    }
    len
}

impl Frames {
    /// Returns the first free run of `count` frames that begins at a multiple of `align`, not before `from`,
    /// and ends at or before `below`.
    fn find(&self, count: u64, align: u64, from: u64, below: u64) -> Option<u64> {
        let mut at = self.hint.max(from);
        loop {
            at = next(self.taken, at, false).next_multiple_of(align);
            let end = at.checked_add(count)?;
            if end > below.min(self.taken.len() as u64 * 64) {
                return None;
            }
            let used = next(self.taken, at, true);
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
        set_range(self.taken, at, at + count, true);
        set_range(self.first, at, at + 1, true);
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
        if !get(self.first, at) || end > self.first.len() as u64 * 64 {
            return Err("no run begins there");
        }
        // The run extends to the next run's first frame or to the next free frame. RAM that was never
        // allocated (reserved) has no first bit, so a run that ends right before such RAM is checked only for
        // not being longer.
        let length = next(self.first, at + 1, true).min(next(self.taken, at + 1, false)) - at;
        if count > length {
            return Err("the run is shorter");
        }
        if count < length && get(self.taken, end) && !self.reserved(end) {
            return Err("the run is longer");
        }
        set_range(self.first, at, at + 1, false);
        set_range(self.taken, at, end, false);
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
static MANAGED: spin::Once<Regions> = spin::Once::new();

fn managed(start: u64, end: u64) -> bool {
    MANAGED.get().is_some_and(|m| m.iter().any(|r| r.start.as_u64() <= start && end <= r.end.as_u64()))
}

/// Returns whether `start..end` overlaps RAM of the memory map.
pub(crate) fn overlaps_ram(start: u64, end: u64) -> bool {
    RAM.get().is_some_and(|m| m.iter().any(|r| r.start.as_u64() < end && start < r.end.as_u64()))
}

/// Returns the number of frames for which the bitmaps have a bit.
pub(crate) fn end() -> u64 {
    FRAMES.lock().taken.len() as u64 * 64
}

/// Returns the regions of RAM from which runs are allocated.
pub(crate) fn ram() -> impl Iterator<Item = Region> {
    MANAGED.get().into_iter().flat_map(Regions::iter)
}

/// Takes over all of `ram` except `reserved`. The bitmaps are placed in that RAM.
///
/// # Safety
/// The caller calls this once. `ram` is RAM, and only `reserved` in it is in use. RAM below 4 GiB is mapped
/// in the direct map.
pub(crate) unsafe fn init(ram: &Regions, reserved: impl Iterator<Item = Region> + Clone) {
    let mut whole = Regions::new();
    let mut top = 0;
    for r in ram.iter() {
        let start = r.start.as_u64().next_multiple_of(PAGE);
        let end = r.end.as_u64() & !(PAGE - 1);
        if start < end {
            whole.push(Region::new(start, end - start));
            top = end.max(top);
        }
    }
    // The rest of each region without the reserved ones.
    let mut free = Regions::new();
    for r in whole.iter() {
        let mut at = r.start.as_u64();
        let end = r.end.as_u64();
        while at < end {
            let inside = |x: &Region| x.start.as_u64() <= at && at < x.end.as_u64();
            if let Some(x) = reserved.clone().find(inside) {
                at = x.end.as_u64().next_multiple_of(PAGE);
                continue;
            }
            let stop = reserved.clone().map(|x| x.start.as_u64() & !(PAGE - 1)).filter(|s| *s > at).min();
            let stop = stop.unwrap_or(end).min(end);
            free.push(Region::new(at, stop - at));
            at = stop;
        }
    }
    // The bitmaps go to the first address with room that is already mapped at this point of the boot.
    let words = (top / PAGE).div_ceil(64);
    let bytes = (words * 16).next_multiple_of(PAGE);
    let bitmaps_at = free.iter().find(|r| r.len() >= bytes && r.start.as_u64() + bytes <= 4 << 30);
    let bitmaps_at = bitmaps_at.expect("no room for the frame bitmaps").start.as_u64();
    let base = (DIRECT_MAP + bitmaps_at) as *mut u64;
    // SAFETY: `bytes` bytes at `bitmaps_at` are free RAM, mapped, and used by nothing else.
    let (taken, first) = unsafe {
        base.write_bytes(0xff, words as usize);
        base.add(words as usize).write_bytes(0, words as usize);
        let len = words as usize;
        (slice::from_raw_parts_mut(base, len), slice::from_raw_parts_mut(base.add(len), len))
    };
    let mut managed = Regions::new();
    let mut total = 0;
    for r in free.iter() {
        let mut start = r.start.as_u64();
        if start == bitmaps_at {
            start += bytes;
        }
        if start < r.end.as_u64() {
            let region = Region::new(start, r.end.as_u64() - start);
            set_range(taken, start / PAGE, r.end.as_u64() / PAGE, false);
            total += region.len() / PAGE;
            managed.push(region);
        }
    }
    RAM.call_once(|| whole);
    MANAGED.call_once(|| managed);
    let none = Frames {
        taken,
        first,
        total,
        free: total,
        hint: 0,
        lendable: &[],
        lendable_free: 0,
        lendable_least: 0,
    };
    *FRAMES.lock() = none;
}

/// Allocates `bytes` (rounded up to frames) contiguous bytes, aligned to 4096 and not zeroed. Returns `None`
/// if no such run is free.
pub(crate) fn alloc(bytes: u64) -> Option<PhysAddr> {
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

/// Allocates as [`alloc_within`] does, anywhere in `ranges` of physical addresses, each of which has whole
/// frames.
pub(crate) fn alloc_among(bytes: u64, align: u64, ranges: &[Range<u64>]) -> Option<PhysAddr> {
    let align = align.max(PAGE) / PAGE;
    let frames = ranges.iter().map(|range| range.start / PAGE..range.end / PAGE);
    let at = FRAMES.lock().alloc_among(bytes.div_ceil(PAGE), align, frames)?;
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
                let taken = next(frames.taken, at, true).min(end);
                (free, run) = (free + taken - at, run + taken - at);
                largest = largest.max(run);
                at = taken;
                if at < end {
                    run = 0;
                    at = next(frames.taken, at, false).min(end);
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
        let mut at = next(frames.taken, range.start, false);
        while at < range.end {
            let taken = next(frames.taken, at, true).min(range.end);
            free += taken - at;
            at = next(frames.taken, taken, false);
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
