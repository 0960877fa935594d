//! Memory of the card's tables, by ICM address. The driver of a physical function provides pages of the guest
//! (MAP_ICM, UNMAP_ICM). The tables of a virtual function are in its master's memory, which is part of the
//! card.

use super::host::Host;
use super::queue_memory::Allowance;
use std::collections::BTreeMap;

/// The page size of ICM, in bytes.
pub(super) const ICM_PAGE: u64 = 4096;

/// An access to an unmapped ICM address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len} bytes at ICM address {virt:#x}: not mapped")]
pub(super) struct IcmFault {
    /// The first ICM address of the access.
    pub virt: u64,
    /// The length of the access, in bytes.
    pub len: usize,
}

/// The memory that holds the card's tables.
#[derive(Debug)]
pub(super) enum Icm {
    /// The tables are in pages of the guest.
    Guest(Chunks),
    /// The tables are in the card's own memory.
    Card(CardMemory),
}

impl Icm {
    /// Reads from a table. The range must be in one mapped chunk, as entries of tables are.
    pub(super) fn read(&self, host: &dyn Host, virt: u64, buf: &mut [u8]) -> Result<(), IcmFault> {
        let fault = IcmFault { virt, len: buf.len() };
        match self {
            Self::Guest(chunks) => {
                let bus = chunks.bus(virt, buf.len() as u64).ok_or(fault)?;
                host.read(bus, buf).map_err(|_| fault)
            }
            Self::Card(memory) => memory.read(virt, buf).ok_or(fault),
        }
    }

    /// Writes to a table.
    pub(super) fn write(&mut self, host: &dyn Host, virt: u64, data: &[u8]) -> Result<(), IcmFault> {
        let fault = IcmFault { virt, len: data.len() };
        match self {
            Self::Guest(chunks) => {
                let bus = chunks.bus(virt, data.len() as u64).ok_or(fault)?;
                host.write(bus, data).map_err(|_| fault)
            }
            Self::Card(memory) => memory.write(virt, data).ok_or(fault),
        }
    }

    /// Returns the card's own memory, if the tables are in it.
    pub(super) const fn card(&mut self) -> Option<&mut CardMemory> {
        match self {
            Self::Card(memory) => Some(memory),
            Self::Guest(_) => None,
        }
    }

    /// Returns the guest's pages, if the tables are in them.
    pub(super) const fn guest(&mut self) -> Option<&mut Chunks> {
        match self {
            Self::Guest(chunks) => Some(chunks),
            Self::Card(_) => None,
        }
    }
}

impl Icm {
    /// Returns the limit on the memory of this process for the queues in these tables.
    pub(super) const fn allowance(&self) -> &Allowance {
        match self {
            Self::Guest(chunks) => &chunks.allowance,
            Self::Card(memory) => &memory.allowance,
        }
    }
}

impl Default for Icm {
    fn default() -> Self {
        Self::Guest(Chunks::default())
    }
}

/// Memory of the card. Pages are allocated when they are written; others read as zero.
#[derive(Debug)]
pub(super) struct CardMemory {
    pages: BTreeMap<u64, Box<[u8; ICM_PAGE as usize]>>,
    len: u64,
    allowance: Allowance,
}

/// The part of a range on one page: page number, offset in the page, offset in the range, length in bytes.
type Piece = (u64, usize, usize, usize);

impl CardMemory {
    /// Creates memory of `len` bytes, all zero.
    #[must_use]
    pub(super) fn new(len: u64) -> Self {
        Self { pages: BTreeMap::new(), len, allowance: Allowance::default() }
    }

    /// Sets the whole pages of a range to zero.
    pub(super) fn clear(&mut self, virt: u64, len: u64) {
        let (first, end) = (virt.div_ceil(ICM_PAGE), (virt + len) / ICM_PAGE);
        self.pages.retain(|page, _| !(first..end).contains(page));
    }

    /// Returns the pieces of a range, or `None` if the range extends beyond the end.
    fn pieces(&self, virt: u64, len: usize) -> Option<impl Iterator<Item = Piece> + use<>> {
        virt.checked_add(len as u64).filter(|&end| end <= self.len)?;
        let mut done = 0;
        Some(std::iter::from_fn(move || {
            let at = virt + done as u64;
            let within = (at % ICM_PAGE) as usize;
            let n = (ICM_PAGE as usize - within).min(len - done);
            let piece = (at / ICM_PAGE, within, done, n);
            done += n;
            (n > 0).then_some(piece)
        }))
    }

    fn read(&self, virt: u64, buf: &mut [u8]) -> Option<()> {
        for (page, within, from, n) in self.pieces(virt, buf.len())? {
            let to = buf.get_mut(from..from + n)?;
            match self.pages.get(&page) {
                Some(bytes) => to.copy_from_slice(bytes.get(within..within + n)?),
                None => to.fill(0),
            }
        }
        Some(())
    }

    fn write(&mut self, virt: u64, data: &[u8]) -> Option<()> {
        for (page, within, from, n) in self.pieces(virt, data.len())? {
            let bytes = self.pages.entry(page).or_insert_with(|| Box::new([0; ICM_PAGE as usize]));
            bytes.get_mut(within..within + n)?.copy_from_slice(data.get(from..from + n)?);
        }
        Some(())
    }
}

/// The mapped chunks. The guest maps and unmaps chunks as its tables grow and shrink.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    /// The bus address and length in bytes of each chunk, by its first ICM address. Chunks do not overlap.
    chunks: BTreeMap<u64, (u64, u64)>,
    allowance: Allowance,
}

/// The maximum number of chunks. At 256 KiB each, the size that Linux uses, they exceed any guest's memory.
const MAX_CHUNKS: usize = 1 << 18;

impl Chunks {
    /// Maps `1 << log_size` bytes at `virt` to `bus`. Returns `false` if the range is invalid.
    pub(super) fn map(&mut self, virt: u64, bus: u64, log_size: u8) -> bool {
        let Some(len) = 1u64.checked_shl(u32::from(log_size)) else { return false };
        let Some(end) = virt.checked_add(len) else { return false };
        if !virt.is_multiple_of(len) || !bus.is_multiple_of(ICM_PAGE) || bus.checked_add(len).is_none() {
            return false;
        }
        self.unmap(virt, end);
        if self.chunks.len() >= MAX_CHUNKS {
            return false;
        }
        self.chunks.insert(virt, (bus, len));
        true
    }

    /// Unmaps the range from `start` to `end`. A chunk that extends beyond the range keeps the rest.
    pub(super) fn unmap(&mut self, start: u64, end: u64) {
        // The first chunk that may overlap the range begins before it.
        let first = self.chunks.range(..start).next_back().map_or(start, |(&at, _)| at);
        let touched: Vec<_> = self
            .chunks
            .range(first..end.max(first))
            .filter(|&(&at, &(_, len))| at + len > start)
            .map(|(&at, &c)| (at, c))
            .collect();
        for (at, (bus, len)) in touched {
            self.chunks.remove(&at);
            if at < start {
                self.chunks.insert(at, (bus, start - at));
            }
            if at + len > end {
                self.chunks.insert(end, (bus + (end - at), at + len - end));
            }
        }
    }

    /// Unmaps all chunks.
    pub(super) fn clear(&mut self) {
        self.chunks.clear();
    }

    /// Returns the bus address of `len` bytes at `virt`, if they are in one mapped chunk.
    fn bus(&self, virt: u64, len: u64) -> Option<u64> {
        let (&at, &(bus, chunk)) = self.chunks.range(..=virt).next_back()?;
        let skip = virt - at;
        (skip.checked_add(len)? <= chunk).then(|| bus + skip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_found_and_cut() {
        let mut icm = Chunks::default();
        assert!(icm.map(0x40000, 0x1000_0000, 18));
        assert_eq!(icm.bus(0x40010, 8), Some(0x1000_0010));
        assert_eq!(icm.bus(0x7fff8, 8), Some(0x1003_fff8));
        assert_eq!(icm.bus(0x7fffc, 8), None);
        icm.unmap(0x50000, 0x51000);
        assert_eq!(icm.bus(0x50000, 1), None);
        assert_eq!(icm.bus(0x51000, 1), Some(0x1001_1000));
        assert_eq!(icm.bus(0x4ffff, 1), Some(0x1000_ffff));
        assert!(!icm.map(0x1000, 0x1000, 13), "not aligned to its size");
        assert!(!icm.map(0, 0, 64));
    }

    #[test]
    fn memory_of_the_card_reads_as_it_was_written_and_ends() {
        let mut memory = CardMemory::new(3 * ICM_PAGE);
        assert_eq!(memory.write(ICM_PAGE - 3, &[1, 2, 3, 4, 5, 6]), Some(()));
        let mut bytes = [9; 8];
        assert_eq!(memory.read(ICM_PAGE - 4, &mut bytes), Some(()));
        assert_eq!(bytes, [0, 1, 2, 3, 4, 5, 6, 0]);
        assert_eq!(memory.read(3 * ICM_PAGE - 7, &mut bytes), None);
        assert_eq!(memory.write(u64::MAX, &[1]), None);
        assert_eq!(memory.pages.len(), 2);
    }
}
