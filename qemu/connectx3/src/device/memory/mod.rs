//! Memory protection: regions and windows, their keys, and access to the guest's memory by keys.

pub(super) mod address;
mod entry;
mod generation;
mod keyed;
mod local;
mod table;

pub(super) use keyed::Keyed;
pub(super) use local::{Bind, FastRegister, LocalWork, Rights};
pub(super) use table::Regions;

use super::host::DmaError;

/// The key that reaches all memory of the guest, for work requests of its kernel (QUERY_DEV_CAP 0x98).
pub(super) const RESERVED_LKEY: u32 = 0x100;

/// The kind of a memory access by a work request or a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    /// A gather from local memory.
    LocalRead,
    /// A scatter to local memory.
    LocalWrite,
    /// A READ by the peer.
    RemoteRead,
    /// A WRITE by the peer.
    RemoteWrite,
    /// A fetch-and-add or compare-and-swap by the peer.
    Atomic,
}

impl Access {
    /// Returns the bit of the entry's first word that grants this access.
    const fn bit(self) -> u32 {
        match self {
            Self::LocalRead => 1 << 10,
            Self::LocalWrite => 1 << 11,
            Self::RemoteRead => 1 << 12,
            Self::RemoteWrite => 1 << 13,
            Self::Atomic => 1 << 14,
        }
    }

    /// Returns whether the access is local.
    const fn is_local(self) -> bool {
        matches!(self, Self::LocalRead | Self::LocalWrite)
    }
}

/// The initiator of a memory access: a queue pair, for itself or for its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Domain {
    /// The protection domain.
    pub pd: u32,
    /// The queue pair's number.
    pub qpn: u32,
    /// True if the queue pair may use [`RESERVED_LKEY`].
    pub reserved_lkey: bool,
}

/// The reason why an access or a change of a key is refused. Nothing was read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Refused {
    /// No region has the key.
    #[error("no region has key {0:#x}")]
    NoKey(u32),
    /// The region's key was invalidated or not yet assigned.
    #[error("key {0:#x} is invalid: it was invalidated, or not yet assigned")]
    Invalid(u32),
    /// The region belongs to another protection domain, or the window to another queue pair.
    #[error("key {0:#x} belongs to another protection domain or queue pair")]
    OtherDomain(u32),
    /// The region does not grant the right.
    #[error("key {0:#x} does not grant {1:?}")]
    NoRight(u32, Access),
    /// The range extends beyond the region.
    #[error("{2} bytes at {1:#x} extend beyond the region of key {0:#x}")]
    OutOfBounds(u32, u64, u64),
    /// The key names a window where a region is required, or a region where a window is required.
    #[error("key {0:#x} names a window where a region is required, or a region where a window is required")]
    WrongKind(u32),
    /// The queue pair or the region does not allow the operation.
    #[error("key {0:#x}: the queue pair or the region does not allow {1}")]
    NotAllowed(u32, &'static str),
    /// The page list is longer than the region's part of the page table, or the page size is invalid.
    #[error("key {0:#x}: its page list does not fit")]
    Pages(u32),
    /// Windows are bound to the region.
    #[error("windows are bound to the region of key {0:#x}")]
    Bound(u32),
    /// The guest has not made the memory accessible to the device.
    #[error(transparent)]
    Dma(#[from] DmaError),
    /// The guest has not provided memory for the table.
    #[error(transparent)]
    Icm(#[from] super::icm::IcmFault),
}
