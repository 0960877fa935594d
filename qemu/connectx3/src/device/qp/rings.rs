//! The rings of a queue pair in the guest's memory: the ownership of entries, and their contents.

use super::wqe::{Control, Malformed};
use crate::device::host::{DmaError, Host, read_be32};
use crate::device::queue_memory::QueueMemory;

/// The maximum length of a send work request, in bytes.
pub(crate) const MAX_WQE: usize = 1008;
/// The maximum length of a receive entry, in bytes.
pub(crate) const MAX_RECEIVE: usize = 512;
/// The unit in which a send ring is read, in bytes.
const BLOCK: usize = 64;

/// The geometry of a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    /// The offset of the ring in the buffer, in bytes.
    pub offset: u64,
    /// log2 of the number of entries.
    pub log_entries: u8,
    /// log2 of the entry length in bytes.
    pub log_stride: u8,
}

impl Ring {
    /// Returns the length of the ring in bytes.
    #[must_use]
    pub(crate) const fn bytes(self) -> u64 {
        1 << (self.log_entries + self.log_stride)
    }

    /// Reads from the entry at a running index, wrapping at the end of the ring.
    fn read(self, memory: &QueueMemory, host: &dyn Host, index: u32, buf: &mut [u8]) -> Result<(), DmaError> {
        let start = u64::from(index) << self.log_stride;
        for (block, part) in buf.chunks_mut(BLOCK.min(1 << self.log_stride)).enumerate() {
            let at = (start + (block * BLOCK.min(1 << self.log_stride)) as u64) & (self.bytes() - 1);
            memory.read(host, self.offset + at, part)?;
        }
        Ok(())
    }
}

/// The reason why the card stops fetching work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The work request is invalid.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The ring is unreadable.
    #[error(transparent)]
    Dma(#[from] DmaError),
}

/// A fetched work request: its index, its control segment and all its bytes.
pub(super) type Taken<'a> = (u16, Control, &'a [u8]);

/// The send ring. The doorbell has no count: entries are fetched while their owner bit matches the lap.
#[derive(Debug)]
pub(crate) struct SendRing {
    ring: Ring,
    /// The number of entries fetched, modulo 2^32; completions contain its low bits.
    head: u32,
    /// The number of entries of the last fetched work request.
    last: u32,
    wqe: [u8; MAX_WQE],
}

impl SendRing {
    /// Creates an empty ring.
    #[must_use]
    pub(crate) const fn new(ring: Ring) -> Self {
        Self { ring, head: 0, last: 0, wqe: [0; MAX_WQE] }
    }

    /// Fetches the next work request, if there is one.
    pub(crate) fn next(
        &mut self,
        memory: &QueueMemory,
        host: &dyn Host,
    ) -> Result<Option<Taken<'_>>, Broken> {
        let mut front = [0; 16];
        self.ring.read(memory, host, self.head, &mut front)?;
        let control = Control::parse(&front);
        let lap = self.head >> self.ring.log_entries & 1 != 0;
        if control.owner() != lap {
            return Ok(None);
        }
        let len = control.len();
        let entries = len.div_ceil(1 << self.ring.log_stride);
        if !(16..=MAX_WQE).contains(&len) || entries > 1 << self.ring.log_entries {
            return Err(Malformed::Size(control.units()).into());
        }
        let wqe = self.wqe.get_mut(..len).ok_or(Malformed::Size(control.units()))?;
        self.ring.read(memory, host, self.head, wqe)?;
        let index = self.head as u16;
        self.last = entries as u32;
        self.head = self.head.wrapping_add(self.last);
        Ok(Some((index, control, wqe)))
    }

    /// Returns the number of entries.
    #[must_use]
    pub(crate) const fn entries(&self) -> u32 {
        1 << self.ring.log_entries
    }

    /// Returns the index of the next work request in the form in which completions contain it.
    #[must_use]
    pub(crate) const fn index(&self) -> u16 {
        self.head as u16
    }

    /// Undoes the fetch of the last work request.
    pub(crate) fn put_back(&mut self) {
        self.head = self.head.wrapping_sub(std::mem::take(&mut self.last));
    }
}

/// A piece of a receive buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scatter {
    /// The key of the region.
    pub lkey: u32,
    /// The first address.
    pub va: u64,
    /// The length in bytes.
    pub len: u32,
}

/// The key of the element that ends a list.
const INVALID_LKEY: u32 = 0x100;

/// Parses a list of scatter elements. The list ends with an element of zero length and the invalid key.
pub(crate) fn scatter_list(entry: &[u8], out: &mut Vec<Scatter>) {
    out.clear();
    for element in entry.chunks_exact(16) {
        let (Some(len), Some(rest)) = (element.first_chunk::<4>(), element.get(4..)) else { return };
        let (Some(lkey), Some(va)) = (rest.first_chunk::<4>(), rest.last_chunk::<8>()) else { return };
        let (len, lkey) = (u32::from_be_bytes(*len) & 0x7fff_ffff, u32::from_be_bytes(*lkey));
        if len == 0 {
            if lkey == INVALID_LKEY {
                return;
            }
            continue;
        }
        out.push(Scatter { lkey, va: u64::from_be_bytes(*va), len });
    }
}

/// The receive ring. The doorbell record counts the posted entries.
#[derive(Debug)]
pub(crate) struct ReceiveRing {
    ring: Ring,
    record: u64,
    head: u16,
}

impl ReceiveRing {
    /// Creates an empty ring. `record` is the bus address of its doorbell record.
    #[must_use]
    pub(crate) const fn new(ring: Ring, record: u64) -> Self {
        Self { ring, record, head: 0 }
    }

    /// Returns the number of entries.
    #[must_use]
    pub(crate) const fn entries(&self) -> u32 {
        1 << self.ring.log_entries
    }

    /// Returns the index of the next entry in the form in which completions contain it.
    #[must_use]
    pub(crate) const fn index(&self) -> u16 {
        self.head
    }

    /// Skips the next posted entry, if there is one, without reading it. Returns its index.
    pub(crate) fn skip(&mut self, host: &dyn Host) -> Result<Option<u16>, DmaError> {
        if read_be32(host, self.record)? as u16 == self.head {
            return Ok(None);
        }
        let index = self.head;
        self.head = self.head.wrapping_add(1);
        Ok(Some(index))
    }

    /// Fetches the next posted entry, if there is one: returns its index, and writes its scatter list to
    /// `out`.
    pub(crate) fn next(
        &mut self,
        memory: &QueueMemory,
        host: &dyn Host,
        out: &mut Vec<Scatter>,
    ) -> Result<Option<u16>, DmaError> {
        let posted = read_be32(host, self.record)? as u16;
        if posted == self.head {
            return Ok(None);
        }
        let mut entry = [0; MAX_RECEIVE];
        let len = (1usize << self.ring.log_stride).min(entry.len());
        let entry = entry.get_mut(..len).unwrap_or_default();
        self.ring.read(memory, host, u32::from(self.head), entry)?;
        scatter_list(entry, out);
        let index = self.head;
        self.head = self.head.wrapping_add(1);
        Ok(Some(index))
    }
}
