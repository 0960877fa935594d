//! The guest's memory that the card uses for its tables, by ICM address (MAP_ICM, UNMAP_ICM).

use std::collections::BTreeMap;

/// Bytes of a page of ICM.
pub const ICM_PAGE: u64 = 4096;

/// What is mapped. The guest maps and unmaps chunks as its tables grow and shrink.
#[derive(Debug, Default)]
pub struct Icm {
    /// First ICM address to (bus address, bytes); no two overlap.
    chunks: BTreeMap<u64, (u64, u64)>,
}

impl Icm {
    /// Maps `1 << log_size` bytes at `virt` to `bus`. `false` if that makes no sense.
    pub fn map(&mut self, virt: u64, bus: u64, log_size: u8) -> bool {
        let Some(len) = 1u64.checked_shl(u32::from(log_size)) else { return false };
        let Some(end) = virt.checked_add(len) else { return false };
        if !virt.is_multiple_of(len) || !bus.is_multiple_of(ICM_PAGE) || bus.checked_add(len).is_none() {
            return false;
        }
        self.unmap(virt, end);
        self.chunks.insert(virt, (bus, len));
        true
    }

    /// Unmaps what lies from `start` to `end`; a chunk that reaches beyond keeps the rest.
    pub fn unmap(&mut self, start: u64, end: u64) {
        let touched: Vec<_> = self
            .chunks
            .range(..end)
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

    /// Forgets all.
    pub fn clear(&mut self) {
        self.chunks.clear();
    }

    /// Where `len` bytes at `virt` are, if they are mapped in one piece.
    pub fn bus(&self, virt: u64, len: u64) -> Option<u64> {
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
        let mut icm = Icm::default();
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
}
