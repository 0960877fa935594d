//! Lent memory: memory of LITE and of applications that devices and peers can reach. It is never a Rust
//! reference.
//!
//! A bit for each frame is set while the frame is lent. So an address from a peer or from safe code can
//! reach lent memory and nothing else: not the heap, a stack, the image, a page table or a device. A
//! ConnectX-3 cannot check the bits. Its one key has entries for the pages of [`covered`], and all lent
//! memory lies there.

use alloc::vec::Vec;
use core::ops::Range;
use core::slice;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use platform::bitmaps::{CHUNK, CHUNK_WORDS};
use platform::coverage::Coverage;
use spin::Once;
use x86_64::PhysAddr;

use super::{PAGE, accesses, frames, paging, phys_to_virt};
use crate::boot::Region;
use crate::sync::IrqMutex;

struct Lent {
    /// A bit for each frame from physical address 0, in chunks of [`CHUNK_WORDS`]. The words of a chunk are
    /// valid once a frame of the chunk has been lent.
    bits: &'static [AtomicU64],
    valid: Vec<AtomicBool>,
    coverage: Coverage,
    /// The ranges of the coverage, in frames.
    frames: Vec<Range<u64>>,
}

static LENT: Once<Lent> = Once::new();
/// The lock under which a chunk becomes valid.
static MAKES_VALID: IrqMutex<()> = IrqMutex::new(());

impl Lent {
    /// Returns a word of bits; `None` if it is not valid, so that no bit of it is set.
    #[inline]
    fn word(&self, frame: u64) -> Option<&AtomicU64> {
        let is_valid = self.valid.get((frame / CHUNK) as usize)?;
        is_valid.load(Ordering::Acquire).then(|| self.bits.get((frame / 64) as usize)).flatten()
    }

    /// Clears the bits of a frame's chunk, unless they are valid.
    fn make_valid(&self, frame: u64) {
        let Some(is_valid) = self.valid.get((frame / CHUNK) as usize) else { return };
        if is_valid.load(Ordering::Acquire) {
            return;
        }
        let _lock = MAKES_VALID.lock();
        if !is_valid.load(Ordering::Acquire) {
            let words =
                self.bits.iter().skip((frame / CHUNK * CHUNK_WORDS) as usize).take(CHUNK_WORDS as usize);
            words.for_each(|word| word.store(0, Ordering::Relaxed));
            is_valid.store(true, Ordering::Release);
        }
    }
}

/// Determines, once, where memory can be lent, when the page tables are final. Nothing is lent yet.
pub(crate) fn init() {
    let words = frames::end().div_ceil(64);
    let run = frames::alloc(words * 8).expect("no room for the bitmap of lent frames");
    // SAFETY: that many words, aligned, in the direct map, are used by nothing else and never freed.
    let bits = unsafe { slice::from_raw_parts(phys_to_virt(run).cast::<AtomicU64>(), words as usize) };
    let mut memory: Vec<_> = frames::ram().map(range_of).collect();
    for kept in [range_of(paging::tables()), range_of(Region::new(run.as_u64(), words * 8))] {
        memory = memory.into_iter().flat_map(|range| without(&range, &kept)).collect();
    }
    let valid = (0..words.div_ceil(CHUNK_WORDS)).map(|_| AtomicBool::new(false)).collect();
    let coverage = Coverage::of(&memory);
    let frames = coverage.ranges.iter().map(|range| range.start / PAGE..range.end / PAGE).collect();
    frames::set_lendable(&LENT.call_once(|| Lent { bits, valid, coverage, frames }).frames);
}

fn range_of(region: Region) -> Range<u64> {
    region.start.as_u64()..region.end.as_u64()
}

/// Returns the whole frames of a range on either side of `kept`.
fn without(range: &Range<u64>, kept: &Range<u64>) -> [Range<u64>; 2] {
    let before = range.start..range.end.min(kept.start & !(PAGE - 1));
    let after = range.start.max(kept.end.next_multiple_of(PAGE))..range.end;
    if kept.end <= range.start || range.end <= kept.start {
        return [range.clone(), range.end..range.end];
    }
    [before, after]
}

fn get() -> &'static Lent {
    LENT.get().expect("memory was lent before the page tables were final")
}

/// Returns the memory that can be lent: whole pages of RAM of one size, without the first MiB, the image,
/// page tables and the frame bitmaps.
pub(crate) fn covered() -> &'static Coverage {
    &get().coverage
}

/// Returns whether all of `len` bytes at physical address `addr` are lent, and `len` is not zero.
#[inline]
pub(crate) fn is_lent(addr: u64, len: u64) -> bool {
    let Some(last) = len.checked_sub(1).and_then(|more| addr.checked_add(more)) else { return false };
    let (Some(lent), mut frame, end) = (LENT.get(), addr / PAGE, last / PAGE + 1) else { return false };
    while frame < end {
        let shift = frame % 64;
        let count = (64 - shift).min(end - frame);
        let Some(word) = lent.word(frame) else { return false };
        let wanted = (u64::MAX >> (64 - count)) << shift;
        if word.load(Ordering::Relaxed) & wanted != wanted {
            return false;
        }
        frame += count;
    }
    true
}

/// Marks whole frames as lent, or as not lent.
fn mark(addr: u64, bytes: u64, is_lent: bool) {
    let (mut frame, end) = (addr / PAGE, (addr + bytes).div_ceil(PAGE));
    while frame < end {
        let shift = frame % 64;
        let count = (64 - shift).min(end - frame);
        if is_lent {
            get().make_valid(frame);
        }
        let Some(word) = get().word(frame) else { return };
        let bits = (u64::MAX >> (64 - count)) << shift;
        if is_lent {
            word.fetch_or(bits, Ordering::Release);
        } else {
            word.fetch_and(!bits, Ordering::Release);
        }
        frame += count;
    }
}

/// Lends a run of `bytes` bytes (rounded up to frames), zeroed. Returns `None` if none is free.
pub(crate) fn lend(bytes: u64) -> Option<PhysAddr> {
    let at = frames::alloc_lendable(bytes, PAGE)?;
    // SAFETY: the run is not lent yet, nothing else uses it, and it is mapped in the direct map.
    unsafe { phys_to_virt(at).write_bytes(0, bytes.next_multiple_of(PAGE) as usize) };
    mark(at.as_u64(), bytes, true);
    Some(at)
}

/// Lends as [`lend`] does, aligned to `align` and not zeroed: for memory that is allocated, and zeroed, piece
/// by piece.
pub(crate) fn lend_unzeroed(bytes: u64, align: u64) -> Option<PhysAddr> {
    let at = frames::alloc_lendable(bytes, align)?;
    mark(at.as_u64(), bytes, true);
    Some(at)
}

/// Allocates a run of `bytes` bytes (rounded up to frames), zeroed, that is not lent: among the memory that
/// can be lent, or elsewhere if none is free there.
pub(super) fn alloc_own(bytes: u64) -> Option<PhysAddr> {
    let Some(at) = frames::alloc_lendable(bytes, PAGE) else {
        return frames::alloc_zeroed(bytes);
    };
    // SAFETY: nothing else uses the run, and it is mapped in the direct map.
    unsafe { phys_to_virt(at).write_bytes(0, bytes.next_multiple_of(PAGE) as usize) };
    Some(at)
}

/// Lends an allocated run of `bytes` bytes, with its content. Returns false, and lends nothing, if memory
/// there cannot be lent.
pub(super) fn lend_own(at: PhysAddr, bytes: u64) -> bool {
    let run = at.as_u64()..at.as_u64() + bytes.next_multiple_of(PAGE);
    let is_covered = covered().ranges.iter().any(|range| range.start <= run.start && run.end <= range.end);
    if is_covered {
        mark(at.as_u64(), bytes, true);
    }
    is_covered
}

/// Ends the loan of a run, after all accesses to it by address. `bytes` must be the length with which it
/// was lent.
///
/// # Panics
/// If that run is not lent.
pub(crate) fn take_back(at: PhysAddr, bytes: u64) {
    assert!(is_lent(at.as_u64(), bytes), "{bytes} bytes at {at:?} are taken back but are not lent");
    mark(at.as_u64(), bytes, false);
    accesses::wait_for_all();
    frames::free(at, bytes);
}
