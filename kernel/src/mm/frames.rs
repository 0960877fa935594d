//! The frame allocator: physically contiguous runs of 4 KiB frames, from two bitmaps (taken; first of a run).
//!
//! First fit from the lowest address, a word of 64 frames at a time. A run is given back whole or not at all: the
//! second bitmap knows where each begins and so where it ends.

use core::ops::Range;
use core::slice;
use x86_64::PhysAddr;

use super::{DIRECT_MAP, PAGE};
use crate::boot::{Region, regions::Regions};
use crate::sync::IrqMutex;

/// The most frames that one run may be asked for; more is refused (16 TiB).
const MAX_RUN: u64 = 1 << 32;

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// RAM that the allocator manages.
    pub total: u64,
    /// Not handed out now.
    pub free: u64,
    /// The longest free run.
    pub largest_free: u64,
}

struct Frames {
    /// A bit for each frame from physical address 0: taken, or no RAM.
    taken: &'static mut [u64],
    /// A bit for each frame: a run that was handed out begins here.
    first: &'static mut [u64],
    total: u64,
    free: u64,
    /// No frame below this one is free.
    hint: u64,
    /// The ranges of frames that can be lent, and how many frames of these are free.
    lendable: &'static [Range<u64>],
    lendable_free: u64,
}

static FRAMES: IrqMutex<Frames> = IrqMutex::new(Frames {
    taken: &mut [],
    first: &mut [],
    total: 0,
    free: 0,
    hint: 0,
    lendable: &[],
    lendable_free: 0,
});

/// RAM, sorted as the loader gave it: what [`ram`] and [`overlaps_ram`] answer from.
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

/// The first `i >= from` whose bit is `value`, or the length of `bits`.
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
    /// The first free run of `count` frames that begins at a multiple of `align`, not before `from`, and ends by `below`.
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

    /// As [`alloc`](Self::alloc), wholly within one of `ranges` of frames.
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

    /// Takes a free run.
    fn take(&mut self, at: u64, count: u64) {
        set_range(self.taken, at, at + count, true);
        set_range(self.first, at, at + 1, true);
        self.free -= count;
        self.lendable_free -= self.lendable_among(at, count);
    }

    /// Counts the frames of a run that can be lent.
    fn lendable_among(&self, at: u64, count: u64) -> u64 {
        let common = |range: &Range<u64>| range.end.min(at + count).saturating_sub(range.start.max(at));
        self.lendable.iter().map(common).sum()
    }

    fn free(&mut self, at: u64, count: u64) -> Result<(), &'static str> {
        let end = at.checked_add(count).ok_or("the run is too long")?;
        if !get(self.first, at) || end > self.first.len() as u64 * 64 {
            return Err("no run begins there");
        }
        // The run lasts to the next run's first frame or the next frame that is free; RAM that was never handed out
        // (reserved) has no first bit, so a run that ends right before it is checked only for not being longer.
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

    /// Whether the taken frame `at` was never handed out.
    fn reserved(&self, at: u64) -> bool {
        let addr = at * PAGE;
        !managed(addr, addr + PAGE)
    }
}

/// Regions that the allocator manages: RAM less what was reserved at the start.
static MANAGED: spin::Once<Regions> = spin::Once::new();

fn managed(start: u64, end: u64) -> bool {
    MANAGED.get().is_some_and(|m| m.iter().any(|r| r.start.as_u64() <= start && end <= r.end.as_u64()))
}

/// Whether `start..end` overlaps RAM of the memory map.
pub fn overlaps_ram(start: u64, end: u64) -> bool {
    RAM.get().is_some_and(|m| m.iter().any(|r| r.start.as_u64() < end && start < r.end.as_u64()))
}

/// The number of the frame after the last one that the bitmaps have a bit for.
pub fn end() -> u64 {
    FRAMES.lock().taken.len() as u64 * 64
}

/// The regions of RAM that runs are handed out from.
pub fn ram() -> impl Iterator<Item = Region> {
    MANAGED.get().into_iter().flat_map(Regions::iter)
}

/// Takes over all of `ram` but `reserved`. The bitmaps come out of the RAM itself.
///
/// # Safety
/// Once. `ram` is RAM, and nothing but `reserved` in it is in use. RAM below 4 GiB is mapped at the direct map.
pub unsafe fn init(ram: &Regions, reserved: impl Iterator<Item = Region> + Clone) {
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
    // What is left of each region once the reserved ones are cut out.
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
    // The bitmaps: at the first place that has room, mapped already at this point of the boot.
    let words = (top / PAGE).div_ceil(64);
    let bytes = (words * 16).next_multiple_of(PAGE);
    let place = free.iter().find(|r| r.len() >= bytes && r.start.as_u64() + bytes <= 4 << 30);
    let place = place.expect("no room for the frame bitmaps").start.as_u64();
    let base = (DIRECT_MAP + place) as *mut u64;
    // SAFETY: `bytes` bytes at `place` are free RAM, mapped and nobody else's.
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
        if start == place {
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
    *FRAMES.lock() = Frames { taken, first, total, free: total, hint: 0, lendable: &[], lendable_free: 0 };
}

/// Takes `bytes` (rounded up to frames) contiguous bytes aligned to 4096. Not zeroed. `None` if no such run is free.
pub fn alloc(bytes: u64) -> Option<PhysAddr> {
    alloc_within(bytes, PAGE, u64::MAX)
}

/// As [`alloc()`], aligned to `align` (a power of two) and wholly below the physical address `below`.
pub fn alloc_within(bytes: u64, align: u64, below: u64) -> Option<PhysAddr> {
    let align = align.max(PAGE) / PAGE;
    let at = FRAMES.lock().alloc(bytes.div_ceil(PAGE), align, below / PAGE)?;
    Some(PhysAddr::new_truncate(at * PAGE))
}

/// As [`alloc()`], zeroed.
pub fn alloc_zeroed(bytes: u64) -> Option<PhysAddr> {
    let at = alloc(bytes)?;
    // SAFETY: the run is ours alone, and mapped at the direct map.
    unsafe { super::phys_to_virt(at).write_bytes(0, bytes.next_multiple_of(PAGE) as usize) };
    Some(at)
}

/// Gives back a run of exactly the `bytes` it was taken with.
///
/// # Panics
/// If that run is not allocated.
pub fn free(at: PhysAddr, bytes: u64) {
    assert!(at.is_aligned(PAGE), "freed frame address {at:?} is not aligned");
    let result = FRAMES.lock().free(at.as_u64() / PAGE, bytes.div_ceil(PAGE));
    if let Err(why) = result {
        panic!("cannot free {bytes} bytes at {at:?}: {why}");
    }
}

/// As [`alloc_within`], of any place in `ranges` of physical addresses, each of which has whole frames.
pub fn alloc_among(bytes: u64, align: u64, ranges: &[Range<u64>]) -> Option<PhysAddr> {
    let align = align.max(PAGE) / PAGE;
    let frames = ranges.iter().map(|range| range.start / PAGE..range.end / PAGE);
    let at = FRAMES.lock().alloc_among(bytes.div_ceil(PAGE), align, frames)?;
    Some(PhysAddr::new_truncate(at * PAGE))
}

/// How much of all RAM is free. Takes time in proportion to the memory: not for the data path.
pub fn stats() -> Stats {
    count(ram().map(|r| r.start.as_u64() / PAGE..r.end.as_u64() / PAGE))
}

/// Counts the frames in `ranges` of physical addresses, and those of them that are free. Takes time in proportion to the memory: not for
/// the data path.
pub fn stats_among(ranges: &[Range<u64>]) -> Stats {
    count(ranges.iter().map(|range| range.start / PAGE..range.end / PAGE))
}

/// Frames that are looked at under the lock at a time: a few microseconds with interrupts off.
const AT_ONCE: u64 = 1 << 17;

/// Counts frames, a part at a time, so that others get at the frames in between: what they take or give back meanwhile may
/// be counted or not.
fn count(ranges: impl Iterator<Item = Range<u64>>) -> Stats {
    let (mut total, mut free, mut largest) = (0, 0, 0);
    for range in ranges {
        total += range.end - range.start;
        // Free frames right before `at`.
        let (mut at, mut run) = (range.start, 0);
        while at < range.end {
            let end = (at + AT_ONCE).min(range.end);
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

/// Total and free bytes, at once (without the longest free run).
pub fn totals() -> (u64, u64) {
    let frames = FRAMES.lock();
    (frames.total * PAGE, frames.free * PAGE)
}

/// Says once which frames can be lent: from now on the free ones among them are counted.
pub fn set_lendable(ranges: &'static [Range<u64>]) {
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
    (frames.lendable, frames.lendable_free) = (ranges, free);
}

/// Total and free bytes of what can be lent, at once (without the longest free run).
pub fn lendable_totals() -> (u64, u64) {
    let frames = FRAMES.lock();
    let total: u64 = frames.lendable.iter().map(|range| range.end - range.start).sum();
    (total * PAGE, frames.lendable_free * PAGE)
}
