//! The bytes of regions that lie in this node's memory.
//!
//! An owner, which may be another node, says where they lie. So this is the one place of LITE that reaches memory by an address
//! rather than through the [`Lent`](platform::Lent) that it has, and the platform looks at each access whether that memory is lent now.

use crate::Error;
use crate::node::Node;
use platform::IoAddr;

impl Node {
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

    /// Sets bytes of this node's memory from `addr` on.
    pub(crate) fn set_here(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), Error> {
        self.platform.memory().fill(addr, len, byte).map_err(|_| Error::OutOfBounds)
    }
}
