//! The heap by `talc`: blocks in bins by size, so that the time to find one does not depend on the number of
//! free blocks. It grows on demand, by runs from the frame allocator.

use core::alloc::Layout;
use core::ptr::NonNull;
use talc::DefaultBinning;
use talc::base::{Talc, binning::Binning};
use talc::source::Source;

use crate::mm::{PAGE, frames, phys_to_virt};

/// The least growth of the heap, if memory allows, in bytes.
const MIN_GROWTH: u64 = 256 << 10;
/// The largest growth beyond the present need, in bytes.
const MAX_GROWTH: u64 = 4 << 20;
/// The bytes that `talc` needs beyond the block itself: alignment and the bookkeeping of a first claim.
const OVERHEAD: u64 = 8192;

/// The free and the used blocks.
pub(super) struct Blocks(Talc<Growth, DefaultBinning>);

impl Blocks {
    /// Returns an allocator without memory. The first allocation claims some.
    pub(super) const fn new() -> Self {
        Self(Talc::new(Growth { end: None }))
    }

    /// Allocates a block, if there is memory for it.
    ///
    /// # Safety
    /// The layout's size is not zero.
    pub(super) unsafe fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        // SAFETY: the caller's promise.
        unsafe { self.0.allocate(layout) }
    }

    /// Frees a block.
    ///
    /// # Safety
    /// [`allocate`](Self::allocate) returned the block for this layout, and nothing uses it any more.
    pub(super) unsafe fn deallocate(&mut self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.0.deallocate(block.as_ptr(), layout) };
    }

    /// Makes a block longer or shorter in place. Returns false if it does not fit there; then it is
    /// unchanged.
    ///
    /// # Safety
    /// [`allocate`](Self::allocate) returned the block for this layout; `size` is not zero, and no larger
    /// than a layout allows.
    pub(super) unsafe fn resize(&mut self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.0.try_realloc_in_place(block.as_ptr(), layout, size) }
    }
}

/// The source of the heap's growth: the frame allocator.
#[derive(Debug)]
struct Growth {
    /// The end of the newest piece of the heap. A run of frames that begins there extends the piece.
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
        // SAFETY: the run is RAM in the direct map. Nothing else uses it, and it is never freed once it is
        // claimed. An earlier claim or extension returned `end`.
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

/// Returns whether a heap that ends at `end` ends where `start` begins, except for `talc`'s rounding down to
/// its unit.
fn within_a_chunk(end: *mut u8, start: *mut u8) -> bool {
    (start as usize).checked_sub(end as usize).is_some_and(|gap| gap < talc::base::CHUNK_UNIT)
}
