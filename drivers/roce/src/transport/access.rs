//! What peers may reach of a node's memory: keys, rights and ranges.

use platform::{IoAddr, Memory, MemoryError};
use verbs::RemoteKey;

/// What a peer wants to do with memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    /// READ.
    Read,
    /// WRITE.
    Write,
    /// Fetch-and-add, compare-and-swap.
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

/// Memory as peers reach it. Addresses are those that peers name, which mean something only together with the key.
///
/// [`check`](Self::check) is asked once for a whole message, the access once for each packet. A key may lose its
/// validity in between, and then the access is refused.
pub trait RemoteAccess {
    /// Whether `key` gives `right` over `len` bytes from `addr`. Not asked for a length of zero, for which a peer needs
    /// no key (specification 9.7.4.1.5).
    fn check(&self, key: RemoteKey, addr: IoAddr, len: u32, right: Right) -> Result<(), Denied>;

    /// Copies `data` to `addr`, within a range that was checked.
    fn write(&self, key: RemoteKey, addr: IoAddr, data: &[u8]) -> Result<(), Denied>;

    /// Copies `out.len()` bytes from `addr` into `out`, within a range that was checked.
    fn read(&self, key: RemoteKey, addr: IoAddr, out: &mut [u8]) -> Result<(), Denied>;

    /// As [`Memory::fetch_add`], on 8 aligned bytes that were checked.
    fn fetch_add(&self, key: RemoteKey, addr: IoAddr, add: u64) -> Result<u64, Denied>;

    /// As [`Memory::compare_swap`], on 8 aligned bytes that were checked.
    fn compare_swap(&self, key: RemoteKey, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, Denied>;

    /// Takes `key` away, as a peer asks by SEND with invalidate.
    fn invalidate(&self, key: RemoteKey) -> Result<(), Denied>;

    /// The peer of an XRC queue pair names a shared receive queue: what is asked for until the next call is in its
    /// protection domain. An RNIC without XRC has none to name.
    fn enter(&self, _srq: u32) -> Result<(), Denied> {
        Err(Denied)
    }
}

/// One key for all of a memory, with every right. It cannot be invalidated.
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
