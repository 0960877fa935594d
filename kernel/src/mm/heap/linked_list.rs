//! The heap by `linked_list_allocator`: one list of the free blocks, of which the first that is large enough is taken. It can
//! only grow where it ends, and the frames there are soon somebody else's: so it takes its memory at once.

use core::alloc::Layout;
use core::ptr::NonNull;
use linked_list_allocator::Heap;

use crate::mm::{PAGE, frames, phys_to_virt};

/// The free blocks.
pub struct Blocks(Heap);

impl Blocks {
    /// Without memory: the first allocation claims it.
    pub const fn new() -> Self {
        Self(Heap::empty())
    }

    /// Claims half of the longest run of free frames.
    fn claim(&mut self) -> Option<()> {
        let len = (frames::stats().largest_free / 2) & !(PAGE - 1);
        let run = frames::alloc(len)?;
        // SAFETY: the run is RAM mapped in the direct map, ours alone, and never given back.
        unsafe { self.0.init(phys_to_virt(run), len as usize) };
        super::claimed(len);
        Some(())
    }

    /// Takes a block, if there is memory for it.
    ///
    /// # Safety
    /// The layout's size is not zero.
    pub unsafe fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        if self.0.bottom().is_null() {
            self.claim()?;
        }
        self.0.allocate_first_fit(layout).ok()
    }

    /// Gives a block back.
    ///
    /// # Safety
    /// [`allocate`](Self::allocate) gave the block for this layout, and nothing uses it any more.
    pub unsafe fn deallocate(&mut self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.0.deallocate(block, layout) };
    }

    /// Never: this allocator cannot resize a block where it is.
    ///
    /// # Safety
    /// None to keep; the other allocator has some.
    pub unsafe fn resize(&mut self, _: NonNull<u8>, _: Layout, _: usize) -> bool {
        false
    }
}
