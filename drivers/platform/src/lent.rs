//! [`Lent`]: memory that is lent, as a value that proves it.

use crate::{IoAddr, MemoryError};

/// A run of memory that [`Memory::lend`](crate::Memory::lend) has lent. Dropping the value returns the
/// memory.
///
/// Only a platform makes such a value, and nobody can copy it. The holder therefore knows that the whole run
/// is lent, and lent to nobody else: an access is checked against the bounds of the run and nothing else.
/// Devices and peers may change the bytes at any time. Otherwise accesses are as those of
/// [`Memory`](crate::Memory): an aligned access of 8 bytes is single, and a reader that sees the last byte of
/// a write sees all of it.
pub trait Lent: Send + Sync {
    /// Returns the address of the first byte of the run, as devices and peers use it.
    fn addr(&self) -> IoAddr;

    /// Returns the length of the run in bytes, as it was requested.
    fn size(&self) -> u64;

    /// Copies `buf.len()` bytes from `offset` of the run into `buf`.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MemoryError>;

    /// Copies `data` to `offset` of the run.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryError>;
}

/// Checks that `len` bytes from `offset` lie in a run of `size` bytes.
pub fn check_bounds(size: u64, offset: u64, len: usize) -> Result<(), MemoryError> {
    let end = offset.checked_add(len as u64);
    if end.is_some_and(|end| end <= size) { Ok(()) } else { Err(MemoryError::OutOfRange) }
}

#[cfg(feature = "arena")]
pub use host::HostLent;

#[cfg(feature = "arena")]
mod host {
    use super::{Lent, check_bounds};
    use crate::{IoAddr, Memory, MemoryError};

    /// A run of a host's memory `M`, which checks each access by itself.
    pub struct HostLent<M: Memory> {
        memory: M,
        addr: IoAddr,
        size: u64,
        give_back: fn(&M, IoAddr, u64),
    }

    impl<M: Memory> HostLent<M> {
        /// The run of `size` bytes at `addr` of `memory`, which `give_back` takes back.
        pub const fn new(memory: M, addr: IoAddr, size: u64, give_back: fn(&M, IoAddr, u64)) -> Self {
            Self { memory, addr, size, give_back }
        }

        fn at(&self, offset: u64, len: usize) -> Result<IoAddr, MemoryError> {
            check_bounds(self.size, offset, len)?;
            self.addr.checked_add(offset).ok_or(MemoryError::OutOfRange)
        }
    }

    impl<M: Memory> Lent for HostLent<M> {
        fn addr(&self) -> IoAddr {
            self.addr
        }

        fn size(&self) -> u64 {
            self.size
        }

        fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
            self.memory.read(self.at(offset, buf.len())?, buf)
        }

        fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
            self.memory.write(self.at(offset, data.len())?, data)
        }
    }

    impl<M: Memory> Drop for HostLent<M> {
        fn drop(&mut self) {
            (self.give_back)(&self.memory, self.addr, self.size);
        }
    }
}
