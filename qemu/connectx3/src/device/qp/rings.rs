//! The rings of a queue pair in the guest's memory: which entries are the card's, and what they hold.

use super::wqe::{Control, Malformed};
use crate::device::host::{DmaError, Host, read_be32};
use crate::device::queue_memory::QueueMemory;

/// The longest send work request.
pub const MAX_WQE: usize = 1008;
/// The longest receive entry.
pub const MAX_RECEIVE: usize = 512;
/// Unit in which a send ring is read.
const BLOCK: usize = 64;

/// The shape of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// First byte in the buffer.
    pub offset: u64,
    /// log2 of the entries.
    pub log_entries: u8,
    /// log2 of the bytes of an entry.
    pub log_stride: u8,
}

impl Ring {
    /// Bytes of the ring.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << (self.log_entries + self.log_stride)
    }

    /// Reads from the entry with a running index on, around the end of the ring.
    fn read(self, memory: &QueueMemory, host: &dyn Host, index: u32, buf: &mut [u8]) -> Result<(), DmaError> {
        let start = u64::from(index) << self.log_stride;
        for (block, part) in buf.chunks_mut(BLOCK.min(1 << self.log_stride)).enumerate() {
            let at = (start + (block * BLOCK.min(1 << self.log_stride)) as u64) & (self.bytes() - 1);
            memory.read(host, self.offset + at, part)?;
        }
        Ok(())
    }
}

/// Why the card stops to take work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    /// The work request makes no sense.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The ring cannot be read.
    #[error(transparent)]
    Dma(#[from] DmaError),
}

/// A work request taken: its index, its control segment and all its bytes.
pub type Taken<'a> = (u16, Control, &'a [u8]);

/// The send ring. The doorbell has no count: entries are taken as long as their owner bit is that of the lap.
#[derive(Debug)]
pub struct SendRing {
    ring: Ring,
    /// Entries taken, as the completions name them.
    head: u32,
    /// Entries of the work request taken last.
    last: u32,
    wqe: [u8; MAX_WQE],
}

impl SendRing {
    /// An empty ring.
    #[must_use]
    pub const fn new(ring: Ring) -> Self {
        Self { ring, head: 0, last: 0, wqe: [0; MAX_WQE] }
    }

    /// Takes the next work request, if there is one.
    pub fn next(&mut self, memory: &QueueMemory, host: &dyn Host) -> Result<Option<Taken<'_>>, Broken> {
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

    /// Entries of the ring.
    #[must_use]
    pub const fn entries(&self) -> u32 {
        1 << self.ring.log_entries
    }

    /// The index of the next work request, as completions name it.
    #[must_use]
    pub const fn index(&self) -> u16 {
        self.head as u16
    }

    /// Leaves the work request taken last in the ring after all.
    pub fn put_back(&mut self) {
        self.head = self.head.wrapping_sub(std::mem::take(&mut self.last));
    }
}

/// A piece of a receive buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scatter {
    /// The region's key.
    pub lkey: u32,
    /// First byte.
    pub va: u64,
    /// Bytes.
    pub len: u32,
}

/// The key of the element that ends a list.
const INVALID_LKEY: u32 = 0x100;

/// Reads a list of scatter elements. It ends with an element of no bytes and the invalid key.
pub fn scatter_list(entry: &[u8], out: &mut Vec<Scatter>) {
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

/// The receive ring. The doorbell record counts the entries posted.
#[derive(Debug)]
pub struct ReceiveRing {
    ring: Ring,
    record: u64,
    head: u16,
}

impl ReceiveRing {
    /// An empty ring with its doorbell record's bus address.
    #[must_use]
    pub const fn new(ring: Ring, record: u64) -> Self {
        Self { ring, record, head: 0 }
    }

    /// Entries of the ring.
    #[must_use]
    pub const fn entries(&self) -> u32 {
        1 << self.ring.log_entries
    }

    /// The index of the next entry, as completions name it.
    #[must_use]
    pub const fn index(&self) -> u16 {
        self.head
    }

    /// Takes the next entry posted, if there is one, without a look at it.
    pub fn skip(&mut self, host: &dyn Host) -> Result<Option<u16>, DmaError> {
        if read_be32(host, self.record)? as u16 == self.head {
            return Ok(None);
        }
        let index = self.head;
        self.head = self.head.wrapping_add(1);
        Ok(Some(index))
    }

    /// Takes the next entry posted, if there is one: its index, and its scatter list into `out`.
    pub fn next(
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
