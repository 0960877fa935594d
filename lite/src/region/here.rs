//! Access to bytes of regions in this node's memory.
//!
//! An owner, which may be another node, supplies the addresses. This module is the one place of LITE that
//! accesses memory by an address and not through its own [`Lent`](platform::Lent), so the platform checks
//! on each access that the memory is lent now.

use crate::Error;
use crate::base::local::Local;
use platform::IoAddr;

impl Local {
    /// Copies from this node's memory at `addr`.
    #[inline]
    pub(crate) fn read_here(&self, addr: IoAddr, into: &mut [u8]) -> Result<(), Error> {
        self.platform.memory().read(addr, into).map_err(|_| Error::OutOfBounds)
    }

    /// Copies to this node's memory at `addr`.
    #[inline]
    pub(crate) fn write_here(&self, addr: IoAddr, data: &[u8]) -> Result<(), Error> {
        self.platform.memory().write(addr, data).map_err(|_| Error::OutOfBounds)
    }

    /// Copies `len` bytes of this node's memory.
    pub(crate) fn copy_within_here(&self, from: IoAddr, to: IoAddr, len: u64) -> Result<(), Error> {
        self.platform.memory().copy(from, to, len).map_err(|_| Error::OutOfBounds)
    }

    /// Sets bytes of this node's memory from `addr`.
    pub(crate) fn set_here(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), Error> {
        self.platform.memory().fill(addr, len, byte).map_err(|_| Error::OutOfBounds)
    }
}
