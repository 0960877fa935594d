//! Memory that devices and peers reach: addressed by [`IoAddr`], read and written by copying.
//!
//! Bytes that a peer may change at any time are never lent as `&[u8]` or `&mut [u8]`. Everything above the platform
//! copies in and out through [`Memory`], which checks every access.

use crate::Lent;
use alloc::boxed::Box;
use core::fmt;
use serde::{Deserialize, Serialize};

/// An address as a device or a peer uses it: physical in the kernel, virtual on a Linux host, an offset in the
/// simulator, a bus address behind an IOMMU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct IoAddr(pub u64);

impl IoAddr {
    /// The address `bytes` further on, or `None` past the end of the address space.
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

/// Why a memory access was refused. Nothing was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Some byte of the range is not memory that may be reached this way.
    #[error("address range is not accessible memory")]
    OutOfRange,
    /// An atomic's address is not a multiple of 8.
    #[error("atomic address is not 8-byte aligned")]
    Misaligned,
}

/// Sizes in bytes of what [`Memory::lend`] hands out from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// All of it.
    pub total: u64,
    /// Not handed out now.
    pub free: u64,
}

/// A node's memory: runs of it that are lent, and access by address.
///
/// Whoever reaches memory of its own does it through the [`Lent`] that it has. Access by address is for what a device or a peer
/// names; each is checked, in the kernel against what is lent at the time.
///
/// An access either happens whole or is refused whole. Copies are not atomic against other accesses to the same bytes,
/// but for aligned 8-byte reads and writes, which are single. All methods may be called from any processor and from
/// the poller in an interrupt, but for `lend`, and the end of what is lent.
pub trait Memory: Send + Sync {
    /// The range that the one key covers: first address and length in bytes.
    fn range(&self) -> (IoAddr, u64);

    /// Whether `len` bytes from `addr` are memory that may be reached. A length of 0 is always in range.
    fn check(&self, addr: IoAddr, len: u64) -> Result<(), MemoryError>;

    /// Copies `buf.len()` bytes from `addr` into `buf`.
    fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError>;

    /// Copies `data` to `addr`. When a reader sees the last byte of `data`, it sees all of it (x86 store order).
    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError>;

    /// Sets `len` bytes from `addr` to `byte`.
    fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError>;

    /// Copies `len` bytes from `src` to `dst`; the ranges may overlap, as in C's `memmove`.
    fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError>;

    /// Adds `add` to the native-endian 64-bit word at `addr`, wrapping; gives the value before.
    fn fetch_add(&self, addr: IoAddr, add: u64) -> Result<u64, MemoryError>;

    /// Stores `swap` in the native-endian 64-bit word at `addr` if it holds `compare`; gives the value before.
    fn compare_swap(&self, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, MemoryError>;

    /// Lends `len` contiguous bytes, zeroed, aligned to 4096; `None` if no such run is free.
    fn lend(&self, len: u64) -> Option<Box<dyn Lent>>;

    /// How much there is and how much is free. Takes the same time whatever that is.
    fn stats(&self) -> MemoryStats;

    /// Bytes of the longest contiguous run that is free. May take time in proportion to the memory: for when there is too little.
    fn largest_free(&self) -> u64;
}
