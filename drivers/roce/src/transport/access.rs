//! Remote access to a node's memory: keys, rights and ranges.

use platform::{IoAddr, Memory, MemoryError};
use verbs::RemoteKey;

/// The access that a peer requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    /// The right to read, which a READ needs.
    Read,
    /// The right to write, which a WRITE needs.
    Write,
    /// The right to change a word atomically, which fetch-and-add and compare-and-swap need.
    Atomic,
}

/// The key is unknown, does not cover the range, or does not give the right. Nothing was read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("key, range or right do not allow the access")]
pub struct Denied;

impl From<MemoryError> for Denied {
    fn from(_: MemoryError) -> Self {
        Self
    }
}

/// A node's memory as its peers reach it. Addresses are those that peers name, and have a meaning only
/// together with the key.
///
/// [`check`](Self::check) is called once for a whole message, the access once for each packet. A key may
/// become invalid in between; the access is then refused.
pub trait RemoteAccess {
    /// Returns an error unless `key` grants `right` over `len` bytes from `addr`. Not called for a length of
    /// zero, for which a peer needs no key (specification 9.7.4.1.5).
    fn check(&self, key: RemoteKey, addr: IoAddr, len: u32, right: Right) -> Result<(), Denied>;

    /// Copies `data` to `addr`, within a range that was checked.
    fn write(&self, key: RemoteKey, addr: IoAddr, data: &[u8]) -> Result<(), Denied>;

    /// Copies `out.len()` bytes from `addr` into `out`, within a range that was checked.
    fn read(&self, key: RemoteKey, addr: IoAddr, out: &mut [u8]) -> Result<(), Denied>;

    /// Adds as [`Memory::fetch_add`] does, to 8 aligned bytes that were checked.
    fn fetch_add(&self, key: RemoteKey, addr: IoAddr, add: u64) -> Result<u64, Denied>;

    /// Swaps as [`Memory::compare_swap`] does, on 8 aligned bytes that were checked.
    fn compare_swap(&self, key: RemoteKey, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, Denied>;

    /// Invalidates `key`, as a peer requests by SEND with invalidate.
    fn invalidate(&self, key: RemoteKey) -> Result<(), Denied>;

    /// Enters the protection domain of a shared receive queue that the peer of an XRC queue pair names. All
    /// accesses until the next call happen in that domain. An RNIC without XRC has no such queue.
    fn enter(&self, _srq: u32) -> Result<(), Denied> {
        Err(Denied)
    }
}

/// A single key for all of a memory, with every right. It cannot be invalidated.
pub struct OneKey<'a> {
    /// The key.
    pub key: RemoteKey,
    /// The memory.
    pub memory: &'a dyn Memory,
}

impl RemoteAccess for OneKey<'_> {
    fn check(&self, key: RemoteKey, addr: IoAddr, len: u32, _right: Right) -> Result<(), Denied> {
        if key != self.key {
            return Err(Denied);
        }
        Ok(self.memory.check(addr, u64::from(len))?)
    }

    fn write(&self, _key: RemoteKey, addr: IoAddr, data: &[u8]) -> Result<(), Denied> {
        Ok(self.memory.write(addr, data)?)
    }

    fn read(&self, _key: RemoteKey, addr: IoAddr, out: &mut [u8]) -> Result<(), Denied> {
        Ok(self.memory.read(addr, out)?)
    }

    fn fetch_add(&self, _key: RemoteKey, addr: IoAddr, add: u64) -> Result<u64, Denied> {
        Ok(self.memory.fetch_add(addr, add)?)
    }

    fn compare_swap(&self, _key: RemoteKey, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, Denied> {
        Ok(self.memory.compare_swap(addr, compare, swap)?)
    }

    fn invalidate(&self, _key: RemoteKey) -> Result<(), Denied> {
        Err(Denied)
    }
}
