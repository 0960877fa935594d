//! The heap by `linked_list_allocator`: one list of free blocks, of which it takes the first that is large
//! enough. It can only grow at its end, and the frames there are soon in use, so it takes its whole memory at
//! once.

use core::alloc::Layout;
use core::ptr::NonNull;
use linked_list_allocator::Heap;

use crate::mm::{PAGE, frames, phys_to_virt};

/// The free blocks of the heap, kept by `linked_list_allocator`.
pub(super) struct Blocks(Heap);

impl Blocks {
    /// Returns an allocator without memory. The first allocation claims it.
    pub(super) const fn new() -> Self {
        Self(Heap::empty())
    }

    /// Claims half of the longest run of free frames.
    fn claim(&mut self) -> Option<()> {
        let len = (frames::stats().largest_free / 2) & !(PAGE - 1);
        let run = frames::alloc(len)?;
        // SAFETY: the run is RAM in the direct map. Nothing else uses it, and it is never freed.
        unsafe { self.0.init(phys_to_virt(run), len as usize) };
        super::claimed(len);
        Some(())
    }

    /// Allocates a block, if there is memory for it.
    ///
    /// # Safety
    /// The layout's size is not zero.
    pub(super) unsafe fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        if self.0.bottom().is_null() {
            self.claim()?;
        }
        self.0.allocate_first_fit(layout).ok()
    }

    /// Frees a block.
    ///
    /// # Safety
    /// [`allocate`](Self::allocate) returned the block for this layout, and nothing uses it any more.
    pub(super) unsafe fn deallocate(&mut self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.0.deallocate(block, layout) };
    }

    /// Returns false: this allocator cannot resize a block in place.
    ///
    /// # Safety
    /// There is nothing to keep; the other allocator has conditions.
    pub(super) unsafe fn resize(&mut self, _: NonNull<u8>, _: Layout, _: usize) -> bool {
        false
    }
}
