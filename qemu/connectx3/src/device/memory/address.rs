//! The guest's memory as the transport addresses it: by `IoAddr`s in own work requests, and by keys in peers'
//! requests.
//!
//! The elements of an own work request are checked against their keys when the card fetches the request. From
//! then on an element is an `IoAddr`: the name of its key's current validity in the upper bits, the offset in
//! the region in the lower bits.

use super::generation::{NAME_BITS, Name};
use super::{Access, Domain, Keyed, Refused};
use crate::device::srq::Domains;
use core::cell::Cell;
use platform::{IoAddr, Lent, Memory, MemoryError, MemoryStats};
use roce::transport::{Denied, RemoteAccess, Right};
use std::sync::Arc;
use verbs::RemoteKey;

/// The number of offset bits in an address; they address 1 TiB.
const OFFSET_BITS: u32 = u64::BITS - NAME_BITS;

/// An address without memory, which stands for an element whose key, range or right was refused.
pub(crate) const NOWHERE: IoAddr = IoAddr(u64::MAX << OFFSET_BITS);

/// Returns the address of a byte of a region. The address is valid as long as the key is.
pub(crate) fn of(keyed: Keyed<'_>, key: u32, va: u64) -> Result<IoAddr, Refused> {
    let (name, start) = keyed.regions.name(key, keyed.start(key)?);
    let offset = va.wrapping_sub(start);
    if offset >> OFFSET_BITS != 0 {
        return Err(Refused::OutOfBounds(key, va, 0));
    }
    Ok(IoAddr(u64::from(name.0) << OFFSET_BITS | offset))
}

/// The memory of own work requests.
pub(crate) struct LocalMemory<'a> {
    /// The guest's memory.
    pub keyed: Keyed<'a>,
}

impl LocalMemory<'_> {
    fn locate(&self, addr: IoAddr) -> Result<(u32, u64), MemoryError> {
        let (name, offset) = ((addr.0 >> OFFSET_BITS) as u32, addr.0 & ((1 << OFFSET_BITS) - 1));
        let (key, start) = self.keyed.regions.named(Name(name)).ok_or(MemoryError::OutOfRange)?;
        Ok((key, start.wrapping_add(offset)))
    }
}

impl Memory for LocalMemory<'_> {
    fn range(&self) -> (IoAddr, u64) {
        (IoAddr(0), u64::MAX)
    }

    /// Elements were checked against their keys; an access to a refused one fails.
    fn check(&self, _addr: IoAddr, _len: u64) -> Result<(), MemoryError> {
        Ok(())
    }

    fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError> {
        let (key, va) = self.locate(addr)?;
        self.keyed.read(key, va, buf).map_err(|_| MemoryError::OutOfRange)
    }

    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError> {
        let (key, va) = self.locate(addr)?;
        self.keyed.write(key, va, data).map_err(|_| MemoryError::OutOfRange)
    }

    fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError> {
        let len = usize::try_from(len).map_err(|_| MemoryError::OutOfRange)?;
        self.write(addr, &vec![byte; len])
    }

    fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError> {
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| MemoryError::OutOfRange)?];
        self.read(src, &mut bytes)?;
        self.write(dst, &bytes)
    }

    fn fetch_add(&self, addr: IoAddr, add: u64) -> Result<u64, MemoryError> {
        let (key, va) = self.locate(addr)?;
        let bus = self.keyed.word(key, va).map_err(|_| MemoryError::OutOfRange)?;
        self.keyed.host.fetch_add(bus, add).map_err(|_| MemoryError::Misaligned)
    }

    fn compare_swap(&self, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        let (key, va) = self.locate(addr)?;
        let bus = self.keyed.word(key, va).map_err(|_| MemoryError::OutOfRange)?;
        self.keyed.host.compare_swap(bus, compare, swap).map_err(|_| MemoryError::Misaligned)
    }

    /// Returns `None`: the memory belongs to the guest, so none can be lent.
    fn lend(&self, _len: u64) -> Option<Box<dyn Lent>> {
        None
    }

    fn largest_free(&self) -> u64 {
        0
    }

    fn stats(&self) -> MemoryStats {
        MemoryStats::default()
    }
}

/// Memory as the peer of one queue pair accesses it.
pub(crate) struct PeerMemory<'a> {
    /// The guest's memory.
    pub keyed: Keyed<'a>,
    /// The queue pair. For XRC, the protection domain is that of the shared receive queue which the peer
    /// named last.
    pub who: Cell<Domain>,
    /// For an XRC target: its XRC domain, and the shared receive queues of all domains.
    pub extended: Option<(u16, Arc<Domains>)>,
    /// The operations that the queue pair allows its peer: READ, WRITE, atomics.
    pub rights: [bool; 3],
    /// A key that the peer's SEND invalidates after the packet has been handled.
    pub invalidated: Cell<Option<u32>>,
}

impl PeerMemory<'_> {
    fn access(&self, right: Right) -> Result<Access, Denied> {
        let [read, write, atomic] = self.rights;
        let (allowed, access) = match right {
            Right::Read => (read, Access::RemoteRead),
            Right::Write => (write, Access::RemoteWrite),
            Right::Atomic => (atomic, Access::Atomic),
        };
        if !allowed {
            log::debug!("queue pair {:#x} does not grant {right:?} to its peer", self.who.get().qpn);
            return Err(Denied);
        }
        Ok(access)
    }

    /// Checks a part of a message. The key may have been invalidated or reused since the whole message was
    /// checked.
    fn again(&self, key: RemoteKey, addr: IoAddr, len: u64, right: Right) -> Result<(), Denied> {
        let access = self.access(right)?;
        self.keyed.check_again(key.0, self.who.get(), addr.0, len, access).map_err(|e| self.denied(right, e))
    }

    fn denied(&self, right: Right, e: Refused) -> Denied {
        log::debug!("{right:?} by the peer of queue pair {:#x}: {e}", self.who.get().qpn);
        Denied
    }

    fn word(&self, key: RemoteKey, addr: IoAddr) -> Result<u64, Denied> {
        self.again(key, addr, 8, Right::Atomic)?;
        self.keyed.word(key.0, addr.0).map_err(|e| self.denied(Right::Atomic, e))
    }
}

impl RemoteAccess for PeerMemory<'_> {
    fn check(&self, key: RemoteKey, addr: IoAddr, len: u32, right: Right) -> Result<(), Denied> {
        let access = self.access(right)?;
        let checked = self.keyed.check(key.0, self.who.get(), addr.0, u64::from(len), access);
        checked.map_err(|e| self.denied(right, e))
    }

    fn write(&self, key: RemoteKey, addr: IoAddr, data: &[u8]) -> Result<(), Denied> {
        self.again(key, addr, data.len() as u64, Right::Write)?;
        self.keyed.write(key.0, addr.0, data).map_err(|e| self.denied(Right::Write, e))
    }

    fn read(&self, key: RemoteKey, addr: IoAddr, out: &mut [u8]) -> Result<(), Denied> {
        self.again(key, addr, out.len() as u64, Right::Read)?;
        self.keyed.read(key.0, addr.0, out).map_err(|e| self.denied(Right::Read, e))
    }

    fn fetch_add(&self, key: RemoteKey, addr: IoAddr, add: u64) -> Result<u64, Denied> {
        self.keyed.host.fetch_add(self.word(key, addr)?, add).map_err(|_| Denied)
    }

    fn compare_swap(&self, key: RemoteKey, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, Denied> {
        self.keyed.host.compare_swap(self.word(key, addr)?, compare, swap).map_err(|_| Denied)
    }

    fn invalidate(&self, key: RemoteKey) -> Result<(), Denied> {
        self.keyed.may_invalidate(key.0, self.who.get()).map_err(|e| {
            log::debug!("SEND with invalidate to queue pair {:#x}: {e}", self.who.get().qpn);
            Denied
        })?;
        self.invalidated.set(Some(key.0));
        Ok(())
    }

    fn enter(&self, srq: u32) -> Result<(), Denied> {
        let own = |(domain, all): &(u16, Arc<Domains>)| all.get(&(*domain, srq)).copied();
        let Some(pd) = self.extended.as_ref().and_then(own) else {
            log::debug!("queue pair {:#x} cannot use shared receive queue {srq:#x}", self.who.get().qpn);
            return Err(Denied);
        };
        self.who.set(Domain { pd, ..self.who.get() });
        Ok(())
    }
}
