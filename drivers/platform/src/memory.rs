//! Memory that devices and peers reach: addressed by [`IoAddr`], read and written by copying.
//!
//! Bytes that a peer may change at any time are never lent as `&[u8]` or `&mut [u8]`. Everything above the
//! platform copies in and out through [`Memory`], which checks every access.

use crate::{Lent, Pages};
use alloc::boxed::Box;
use core::fmt;
use serde::{Deserialize, Serialize};

/// An address as a device or a peer uses it: physical in the kernel, virtual on a Linux host, an offset in
/// the simulator, a bus address behind an IOMMU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct IoAddr(pub u64);

impl IoAddr {
    /// Returns the address `bytes` further on, or `None` past the end of the address space.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(a) => Some(Self(a)),
            None => None,
        }
    }
}

impl fmt::Debug for IoAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "io:{:#x}", self.0)
    }
}

/// The reason for which a memory access was refused. Nothing was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Some byte of the range is not accessible memory.
    #[error("address range is not accessible memory")]
    OutOfRange,
    /// The address of an atomic is not a multiple of 8.
    #[error("atomic address is not 8-byte aligned")]
    Misaligned,
}

/// The amounts of memory that [`Memory::lend`] manages, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// All memory, allocated or free.
    pub total: u64,
    /// The memory that is not allocated.
    pub free: u64,
}

/// A node's memory: runs of it that are lent, and access by address.
///
/// A crate reaches memory of its own through the [`Lent`] that it holds. Access by address is for
/// memory that a device or a peer names. Each such access is checked; the kernel checks it against
/// the memory that is lent at the time.
///
/// An access either happens completely or is refused completely. Copies are not atomic against
/// other accesses to the same bytes; only aligned 8-byte reads and writes are. Any processor may
/// call any method. The poller in an interrupt may call all except `lend`, and must not drop a
/// [`Lent`].
pub trait Memory: Send + Sync {
    /// Returns the range that the one key covers: the first address and the length in bytes.
    fn range(&self) -> (IoAddr, u64);

    /// Returns an error unless `len` bytes from `addr` are accessible memory. A length of 0 is always in
    /// range.
    fn check(&self, addr: IoAddr, len: u64) -> Result<(), MemoryError>;

    /// Copies `buf.len()` bytes from `addr` into `buf`.
    fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError>;

    /// Copies `data` to `addr`. A reader that sees the last byte of `data` sees all of it (x86 store order).
    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError>;

    /// Sets `len` bytes from `addr` to `byte`.
    fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError>;

    /// Copies `len` bytes from `src` to `dst`. The ranges may overlap, as with C's `memmove`.
    fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError>;

    /// Adds `add` to the native-endian 64-bit word at `addr`, wrapping, and returns the previous value.
    fn fetch_add(&self, addr: IoAddr, add: u64) -> Result<u64, MemoryError>;

    /// Stores `swap` in the native-endian 64-bit word at `addr` if it holds `compare`, and returns the
    /// previous value.
    fn compare_swap(&self, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, MemoryError>;

    /// Lends `len` contiguous bytes (rounded up to 4096), zeroed and aligned to 4096. Returns
    /// `None` if no such run is free.
    fn lend(&self, len: u64) -> Option<Box<dyn Lent>>;

    /// Returns `len` zeroed bytes of the caller's own. They are not lent, and no device or peer reaches them.
    /// Returns `None` if there are too few. The default takes them from the heap.
    fn pages(&self, len: usize) -> Option<Pages> {
        Pages::on_heap(len)
    }

    /// Lends pages in place, with their content.
    ///
    /// # Errors
    /// The pages, if peers cannot reach memory where they are. The default returns them always.
    fn lend_pages(&self, pages: Pages) -> Result<Box<dyn Lent>, Pages> {
        Err(pages)
    }

    /// Returns the amounts of total and free memory. Takes constant time.
    fn stats(&self) -> MemoryStats;

    /// Returns the least amount of memory that was free since the last call of this, in bytes. A memory that
    /// does not keep it returns the amount that is free now.
    fn take_least_free(&self) -> u64 {
        self.stats().free
    }

    /// Returns the length of the longest free run, in bytes. May take time in proportion to the
    /// memory, so it is called only when memory is short.
    fn largest_free(&self) -> u64;
}
