//! The heap by `talc`: blocks in bins by size, so that finding one does not depend on how many are free. Grows on demand,
//! by runs out of the frame allocator.

use core::alloc::Layout;
use core::ptr::NonNull;
use talc::DefaultBinning;
use talc::base::{Talc, binning::Binning};
use talc::source::Source;

use crate::mm::{PAGE, frames, phys_to_virt};

/// The heap grows by at least this much, if memory allows.
const MIN_GROWTH: u64 = 256 << 10;
/// And by at most this much more than is needed now.
const MAX_GROWTH: u64 = 4 << 20;
/// What `talc` needs beyond the block itself: alignment and the bookkeeping of a first claim.
const OVERHEAD: u64 = 8192;

/// The free and the used blocks.
pub struct Blocks(Talc<Growth, DefaultBinning>);

impl Blocks {
    /// Without memory: the first allocation claims some.
    pub const fn new() -> Self {
        Self(Talc::new(Growth { end: None }))
    }

    /// Takes a block, if there is memory for it.
    ///
    /// # Safety
    /// The layout's size is not zero.
    pub unsafe fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        // SAFETY: the caller's promise.
        unsafe { self.0.allocate(layout) }
    }

    /// Gives a block back.
    ///
    /// # Safety
    /// [`allocate`](Self::allocate) gave the block for this layout, and nothing uses it any more.
    pub unsafe fn deallocate(&mut self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.0.deallocate(block.as_ptr(), layout) };
    }

    /// Makes a block longer or shorter where it is. `false`: it does not fit there, and is as before.
    ///
    /// # Safety
    /// [`allocate`](Self::allocate) gave the block for this layout; `size` is not zero, and no more than a layout may have.
    pub unsafe fn resize(&mut self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.0.try_realloc_in_place(block.as_ptr(), layout, size) }
    }
}

/// Grows the heap out of the frame allocator.
#[derive(Debug)]
struct Growth {
    /// Where the newest piece of the heap ends: a run of frames that begins there extends it.
    end: Option<NonNull<u8>>,
}

// SAFETY: the pointer is a mark in memory that the allocator owns, used under the heap's lock only.
unsafe impl Send for Growth {}

// SAFETY: `acquire` touches only the frame allocator, which never allocates from the heap.
unsafe impl Source for Growth {
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        let need = (layout.size() as u64).checked_add(layout.align() as u64 + OVERHEAD).ok_or(())?;
        let need = need.checked_next_multiple_of(PAGE).ok_or(())?;
        let wish = (super::stats().claimed / 4).clamp(MIN_GROWTH, MAX_GROWTH) & !(PAGE - 1);
        let (run, len) =
            [need.max(wish), need].into_iter().find_map(|len| Some((frames::alloc(len)?, len))).ok_or(())?;
        let start = phys_to_virt(run);
        // SAFETY: the run is RAM mapped in the direct map, ours alone, and never given back once it is claimed; `end` is
        // what an earlier claim or extension returned.
        let end = unsafe {
            match talc.source.end.filter(|end| within_a_chunk(end.as_ptr(), start)) {
                Some(end) => Some(talc.extend(end, start.add(len as usize))),
                None => talc.claim(start, len as usize),
            }
        };
        if end.is_none() {
            frames::free(run, len);
            return Err(());
        }
        talc.source.end = end;
        super::claimed(len);
        Ok(())
    }
}

/// Whether a heap that ends at `end` ends where `start` begins, but for `talc`'s rounding down to its unit.
fn within_a_chunk(end: *mut u8, start: *mut u8) -> bool {
    (start as usize).checked_sub(end as usize).is_some_and(|gap| gap < talc::base::CHUNK_UNIT)
}
