//! Memory protection: regions and windows, their keys, and the guest's memory as keys reach it.

pub mod address;
mod entry;
mod generation;
mod keyed;
mod local;
mod table;

pub use keyed::Keyed;
pub use local::{Bind, FastRegister, LocalWork, Rights};
pub use table::Regions;

use super::host::DmaError;

/// The key that reaches all memory of the guest for work requests of its kernel (QUERY_DEV_CAP 0x98).
pub const RESERVED_LKEY: u32 = 0x100;

/// What a work request or a peer wants to do with memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Gather from it.
    LocalRead,
    /// Scatter to it.
    LocalWrite,
    /// READ.
    RemoteRead,
    /// WRITE.
    RemoteWrite,
    /// Fetch-and-add, compare-and-swap.
    Atomic,
}

impl Access {
    /// The bit of the entry's first word that gives it.
    const fn bit(self) -> u32 {
        match self {
            Self::LocalRead => 1 << 10,
            Self::LocalWrite => 1 << 11,
            Self::RemoteRead => 1 << 12,
            Self::RemoteWrite => 1 << 13,
            Self::Atomic => 1 << 14,
        }
    }

    /// Whether it is the node's own.
    const fn is_local(self) -> bool {
        matches!(self, Self::LocalRead | Self::LocalWrite)
    }
}

/// Who reaches for memory: a queue pair, for itself or for its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Domain {
    /// Protection domain.
    pub pd: u32,
    /// The queue pair's number.
    pub qpn: u32,
    /// Whether it may use [`RESERVED_LKEY`].
    pub reserved_lkey: bool,
}

/// Why an access or a change of a key is refused. Nothing was read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// No region has the key.
    #[error("no region has key {0:#x}")]
    NoKey(u32),
    /// The region has the key, but it was taken away.
    #[error("key {0:#x} is invalid: it was taken away, or not given yet")]
    Invalid(u32),
    /// The region belongs to another protection domain, or the window to another queue pair.
    #[error("key {0:#x} belongs to another protection domain or queue pair")]
    OtherDomain(u32),
    /// The region does not give the right.
    #[error("key {0:#x} does not give {1:?}")]
    NoRight(u32, Access),
    /// The range goes beyond the region.
    #[error("{1:#x} and {2} bytes go beyond the region of key {0:#x}")]
    OutOfBounds(u32, u64, u64),
    /// A window is no memory of work requests; a region is no window.
    #[error("key {0:#x} is of a window where a region is needed, or the other way round")]
    WrongKind(u32),
    /// The queue pair or the region does not allow that.
    #[error("key {0:#x}: the queue pair or the region does not allow {1}")]
    NotAllowed(u32, &'static str),
    /// The page list is longer than the region's part of the page table, or its pages are of a size that there is not.
    #[error("key {0:#x}: its page list does not fit")]
    Pages(u32),
    /// Windows are bound to the region.
    #[error("windows are bound to the region of key {0:#x}")]
    Bound(u32),
    /// The guest has not given the memory to the device.
    #[error(transparent)]
    Dma(#[from] DmaError),
    /// The guest has not given memory for the table.
    #[error(transparent)]
    Icm(#[from] super::icm::IcmFault),
}
