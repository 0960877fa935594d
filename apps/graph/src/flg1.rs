//! `FLG1`, the compact form of an edge list: a header of 32 bytes, then records of equal length.
//!
//! | offset | length | content |
//! |---|---|---|
//! | 0 | 4 | `FLG1` |
//! | 4 | 4 | bit 0: records have weights; bit 1: vertices have 8 bytes, not 4; others are 0 |
//! | 8 | 8 | the number of edges |
//! | 16 | 8 | the checksum: the sum of a hash of each record with its number, modulo 2^64 |
//! | 24 | 8 | 0 |
//! | 32 | | for each edge: source, target, and, if there are weights, 4 bytes of weight |
//!
//! Numbers are little-endian. The checksum is a sum, so that each node of a job computes a part of it.

use crate::snap::Fault;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The first bytes of a file in this form.
const MAGIC: [u8; 4] = *b"FLG1";
const WEIGHTS: u32 = 1;
const WIDE: u32 = 2;

/// The header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) weights: bool,
    /// True if a vertex has 8 bytes.
    pub(crate) wide: bool,
    pub(crate) edges: u64,
    pub(crate) checksum: u64,
}

fn fault(offset: usize, reason: String) -> Fault {
    Fault { offset, reason }
}

impl Header {
    /// The length of a header, in bytes.
    pub(crate) const LEN: usize = 32;

    /// Returns true if the bytes are the begin of a file in this form.
    pub(crate) fn is_begin(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    pub(crate) fn emit(&self) -> [u8; Self::LEN] {
        let flags = u32::from(self.weights) * WEIGHTS + u32::from(self.wide) * WIDE;
        let words =
            [u64::from(u32::from_le_bytes(MAGIC)) | u64::from(flags) << 32, self.edges, self.checksum, 0];
        let mut out = [0; Self::LEN];
        let (into, _) = out.as_chunks_mut::<8>();
        into.iter_mut().zip(words).for_each(|(into, word)| *into = word.to_le_bytes());
        out
    }

    /// Reads the header of a file of `len` bytes that begins with `bytes`.
    pub(crate) fn parse(bytes: &[u8], len: u64) -> Result<Self, Fault> {
        let (words, _) = bytes.get(..Self::LEN).unwrap_or_default().as_chunks::<8>();
        let [first, edges, checksum, last] = words else {
            return Err(fault(bytes.len(), format!("the file ends in its header of {} bytes", Self::LEN)));
        };
        let [first, edges, checksum, last] =
            [first, edges, checksum, last].map(|word| u64::from_le_bytes(*word));
        let flags = (first >> 32) as u32;
        if flags & !(WEIGHTS | WIDE) != 0 {
            return Err(fault(4, format!("the flags {flags:#x} are unknown")));
        }
        if last != 0 {
            return Err(fault(24, "the last word of the header is not 0".into()));
        }
        let header = Self { weights: flags & WEIGHTS != 0, wide: flags & WIDE != 0, edges, checksum };
        let body = edges.checked_mul(header.record() as u64);
        match body.and_then(|body| body.checked_add(Self::LEN as u64)) {
            Some(wanted) if wanted == len => Ok(header),
            Some(wanted) => {
                let at = usize::try_from(wanted.min(len)).unwrap_or(usize::MAX);
                Err(fault(at, format!("the file has {len} bytes, and its {edges} edges need {wanted}")))
            }
            None => Err(fault(8, format!("{edges} edges are too many"))),
        }
    }

    /// Appends the records of some edges, the first of which has the number `first`. Returns their part of
    /// the checksum.
    pub(crate) fn append(&self, edges: &[(u64, u64, u32)], first: u64, out: &mut Vec<u8>) -> u64 {
        let mut sum = 0u64;
        for (number, (from, to, weight)) in (first..).zip(edges) {
            for vertex in [from, to] {
                let bytes = vertex.to_le_bytes();
                let short = bytes.first_chunk::<4>().unwrap_or(&[0; 4]);
                out.extend_from_slice(if self.wide { &bytes } else { short });
            }
            if self.weights {
                out.extend_from_slice(&weight.to_le_bytes());
            }
            let weight = if self.weights { *weight } else { 1 };
            sum = sum.wrapping_add(term(number, (*from, *to, weight)));
        }
        sum
    }

    /// Returns the length of a record, in bytes.
    pub(crate) fn record(&self) -> usize {
        let vertex = if self.wide { 8 } else { 4 };
        2 * vertex + if self.weights { 4 } else { 0 }
    }

    /// Returns the number of the first record that begins at or behind an offset of the file.
    pub(crate) fn first_from(&self, offset: u64) -> u64 {
        offset.saturating_sub(Self::LEN as u64).div_ceil(self.record() as u64)
    }

    /// Returns the offset of a record in the file.
    pub(crate) fn offset_of(&self, number: u64) -> u64 {
        Self::LEN as u64 + number * self.record() as u64
    }

    /// Returns source, target and weight of a record; the weight is 1 if there are none.
    pub(crate) fn read(&self, record: &[u8]) -> Option<(u64, u64, u32)> {
        let (from, to, rest) = if self.wide {
            let (from, rest) = record.split_first_chunk()?;
            let (to, rest) = rest.split_first_chunk()?;
            (u64::from_le_bytes(*from), u64::from_le_bytes(*to), rest)
        } else {
            let (from, rest) = record.split_first_chunk()?;
            let (to, rest) = rest.split_first_chunk()?;
            (u32::from_le_bytes(*from).into(), u32::from_le_bytes(*to).into(), rest)
        };
        let weight = if self.weights { u32::from_le_bytes(*rest.first_chunk()?) } else { 1 };
        Some((from, to, weight))
    }
}

/// Returns the term of a record in the checksum.
pub(crate) fn term(number: u64, (from, to, weight): (u64, u64, u32)) -> u64 {
    let mix = |state: u64, word: u64| {
        let mixed = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    };
    [number, from, to, weight.into()].into_iter().fold(0x464c_4731, mix).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Returns a file with these edges: source, target and weight. Without `weights`, the weights are left out.
///
/// ```
/// let file = graph::to_flg1(&[(1, 2, 1), (2, 3, 1)], false);
/// assert_eq!((&file[..4], file.len()), (&b"FLG1"[..], 32 + 2 * 8));
/// ```
#[must_use]
pub fn to_flg1(edges: &[(u64, u64, u32)], weights: bool) -> Vec<u8> {
    let wide = edges.iter().any(|(from, to, _)| is_wide(*from, *to));
    let mut header = Header { weights, wide, edges: edges.len() as u64, checksum: 0 };
    let mut records = Vec::with_capacity(edges.len() * header.record());
    header.checksum = header.append(edges, 0, &mut records);
    let mut out = header.emit().to_vec();
    out.append(&mut records);
    out
}

/// Returns true if a record of this edge needs 8 bytes for a vertex.
pub(crate) fn is_wide(from: u64, to: u64) -> bool {
    from.max(to) > u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            edges in proptest::collection::vec((0u64..1 << 33, any::<u64>(), any::<u32>()), 0..50),
            narrow: bool,
            weights: bool,
        ) {
            let cut = |id: u64| if narrow { id & 0xffff_ffff } else { id };
            let edges: Vec<_> = edges.into_iter().map(|(a, b, w)| (cut(a), cut(b), w)).collect();
            let file = to_flg1(&edges, weights);
            let header = Header::parse(&file, file.len() as u64).unwrap();
            let records = file[Header::LEN..].chunks_exact(header.record());
            let read: Vec<_> = records.map(|record| header.read(record).unwrap()).collect();
            let sum = (0..).zip(&read).fold(0u64, |sum, (n, edge)| sum.wrapping_add(term(n, *edge)));
            prop_assert_eq!(sum, header.checksum);
            let wanted: Vec<_> = edges.iter().map(|(a, b, w)| (*a, *b, if weights { *w } else { 1 })).collect();
            prop_assert_eq!(read, wanted);
        }
    }

    #[test]
    fn a_wrong_header_is_refused_with_its_place() {
        let file = to_flg1(&[(1, 2, 3), (4, 5, 6)], true);
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut file = file.clone();
            change(&mut file);
            Header::parse(&file, file.len() as u64).unwrap_err()
        };
        assert_eq!(refused(&|file| file.truncate(31)).offset, 31);
        assert_eq!(refused(&|file| file[4] = 9).offset, 4);
        assert_eq!(refused(&|file| file[30] = 1).offset, 24);
        assert_eq!(refused(&|file| file[15] = 0xff).offset, 8);
        let cut = refused(&|file| file.truncate(50));
        assert_eq!((cut.offset, &cut.reason[..]), (50, "the file has 50 bytes, and its 2 edges need 56"));
        assert_eq!(refused(&|file| file.push(0)).offset, 56);
    }

    #[test]
    fn the_checksum_covers_each_bit_and_the_order() {
        let sum = |edges: &[(u64, u64, u32)]| {
            Header::parse(&to_flg1(edges, true), 32 + 12 * edges.len() as u64).unwrap().checksum
        };
        let all = sum(&[(1, 2, 3), (4, 5, 6)]);
        assert_ne!(all, sum(&[(4, 5, 6), (1, 2, 3)]));
        for bit in 0..32 {
            assert_ne!(all, sum(&[(1 ^ 1 << bit, 2, 3), (4, 5, 6)]));
            assert_ne!(all, sum(&[(1, 2, 3), (4, 5, 6 ^ 1 << bit)]));
        }
    }
}
