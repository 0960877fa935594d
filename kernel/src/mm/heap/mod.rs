//! The heap: an allocator over runs of frames in the direct map, so a heap address and its physical address
//! differ by a constant. Its lock masks interrupts. A reallocation copies outside of the lock.
//!
//! The allocator is a feature of the build: `heap-talc`, which ships, or `heap-linked-list`, which
//! exists for comparison. `cargo xtask bench heaps` measures both in this kernel
//! (docs/performance/building.md has the figures).

#[cfg(feature = "heap-linked-list")]
mod linked_list;
#[cfg(feature = "heap-talc")]
mod talc;

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::sync::IrqMutex;
#[cfg(all(feature = "heap-linked-list", not(feature = "heap-talc")))]
use linked_list::Blocks;
#[cfg(feature = "heap-talc")]
use talc::Blocks;

#[cfg(not(any(feature = "heap-talc", feature = "heap-linked-list")))]
compile_error!("the heap needs an allocator: the feature heap-talc or heap-linked-list");
#[cfg(all(feature = "heap-talc", feature = "heap-linked-list"))]
compile_error!("the heap has one allocator: either the feature heap-talc or heap-linked-list");

/// The name of the allocator that this kernel is built with.
#[cfg(feature = "selftest")]
pub(crate) const ALLOCATOR: &str = if cfg!(feature = "heap-talc") { "talc" } else { "linked_list_allocator" };

/// The number of bytes claimed for the heap so far.
static CLAIMED: AtomicU64 = AtomicU64::new(0);
/// The number of allocated bytes, as requested.
static IN_USE: AtomicU64 = AtomicU64::new(0);
/// The size of the last allocation that found no memory; 0 when none did.
static FAILED: AtomicUsize = AtomicUsize::new(0);

/// Adds `bytes` that the allocator has taken from the frame allocator.
fn claimed(bytes: u64) {
    CLAIMED.fetch_add(bytes, Ordering::Relaxed);
}

struct Heap(IrqMutex<Blocks>);

#[global_allocator]
static HEAP: Heap = Heap(IrqMutex::new(Blocks::new()));

// SAFETY: `Blocks` is an allocator; the lock makes its use exclusive.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises a layout of non-zero size.
        match unsafe { self.0.lock().allocate(layout) } {
            Some(p) => {
                IN_USE.fetch_add(layout.size() as u64, Ordering::Relaxed);
                p.as_ptr()
            }
            None => {
                FAILED.store(layout.size(), Ordering::Relaxed);
                ptr::null_mut()
            }
        }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        let Some(block) = NonNull::new(ptr) else { return };
        IN_USE.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller promises that `ptr` came from `alloc` with this layout.
        unsafe { self.0.lock().deallocate(block, layout) };
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Some(block) = NonNull::new(ptr) else { return ptr::null_mut() };
        // SAFETY: the caller's promises, the same as for `alloc` and `dealloc`.
        unsafe {
            if self.0.lock().resize(block, layout, new_size) {
                IN_USE.fetch_add(new_size as u64, Ordering::Relaxed);
                IN_USE.fetch_sub(layout.size() as u64, Ordering::Relaxed);
                return ptr;
            }
            let new = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !new.is_null() {
                new.copy_from_nonoverlapping(ptr, layout.size().min(new_size));
                self.dealloc(ptr, layout);
            }
            new
        }
    }
}

/// The state of the heap; sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stats {
    /// The memory taken from the frame allocator for the heap.
    pub claimed: u64,
    /// The number of allocated bytes.
    pub in_use: u64,
}

/// Returns the size of the heap.
pub(crate) fn stats() -> Stats {
    Stats { claimed: CLAIMED.load(Ordering::Relaxed), in_use: IN_USE.load(Ordering::Relaxed) }
}

/// Returns the size of the last allocation that found no memory, if any.
pub(crate) fn last_failure() -> Option<usize> {
    Some(FAILED.load(Ordering::Relaxed)).filter(|size| *size != 0)
}
