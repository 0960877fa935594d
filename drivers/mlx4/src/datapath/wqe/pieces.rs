//! Inline payload, in pieces.

use super::entry::{CHUNK, CHUNK_WORDS, Entry, UNIT, pair};
use core::sync::atomic::{AtomicU64, Ordering};

/// The size of the header of a piece, in bytes.
pub(super) const HEADER: usize = 4;
/// Flag in the header of a data segment: the data is inline.
const INLINE: u32 = 1 << 31;

/// Writes bytes from a unit of a request on. Each piece has a header and ends at a chunk boundary. Returns
/// the index of the unit after them.
#[inline(always)]
pub(super) fn write(entry: &Entry, unit: usize, bytes: &[u8]) -> usize {
    const UNITS: usize = CHUNK / UNIT;
    const ROOM: usize = CHUNK - HEADER;
    let behind = |bytes: &[u8]| (HEADER + bytes.len()).div_ceil(UNIT);
    let chunks = entry.as_chunks::<CHUNK_WORDS>().0;
    let Some((first, others)) = chunks.get(unit / UNITS..).and_then(<[_]>::split_first) else {
        return unit;
    };
    let (_, targets) = first.split_at(unit % UNITS * 2);
    if bytes.is_empty() {
        return unit;
    }
    let Some((piece, mut bytes)) = bytes.split_at_checked(targets.len() * 8 - HEADER) else {
        fill_part(targets, bytes);
        return unit + behind(bytes);
    };
    fill(targets, piece);
    let mut end = (unit / UNITS + 1) * UNITS;
    for chunk in others {
        let Some((piece, rest)) = bytes.split_first_chunk::<ROOM>() else {
            if !bytes.is_empty() {
                fill_part(chunk, bytes);
                end += behind(bytes);
            }
            break;
        };
        fill(chunk, piece);
        (bytes, end) = (rest, end + UNITS);
    }
    end
}

/// Writes a piece that fills its units. The word with its header is stored last.
#[inline(always)]
fn fill(targets: &[AtomicU64], piece: &[u8]) {
    if let (Some((first, targets)), Some((head, behind))) = (targets.split_first(), piece.split_first_chunk())
    {
        for (target, word) in targets.iter().zip(behind.as_chunks().0) {
            target.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        first.store(header(piece.len(), u32::from_be_bytes(*head)), Ordering::Release);
    }
}

/// Writes a piece that may be shorter than its units.
#[inline(never)]
fn fill_part(targets: &[AtomicU64], piece: &[u8]) {
    let Some((first, targets)) = targets.split_first() else { return };
    let head = if let Some((head, behind)) = piece.split_first_chunk() {
        let (targets, behind) = fill_words::<4>(targets, behind);
        let (targets, behind) = fill_words::<2>(targets, behind);
        let (targets, behind) = fill_words::<1>(targets, behind);
        if !behind.is_empty()
            && let Some(target) = targets.first()
        {
            target.store(padded(behind).to_be(), Ordering::Relaxed);
        }
        u32::from_be_bytes(*head)
    } else {
        (padded(piece) >> 32) as u32
    };
    first.store(header(piece.len(), head), Ordering::Release);
}

/// Stores `N` words if there are that many. Returns the remaining targets and bytes.
#[inline(always)]
fn fill_words<'a, 'b, const N: usize>(
    targets: &'a [AtomicU64],
    bytes: &'b [u8],
) -> (&'a [AtomicU64], &'b [u8]) {
    match (targets.split_first_chunk::<N>(), bytes.split_at_checked(8 * N)) {
        (Some((targets, behind)), Some((words, rest))) => {
            for (target, word) in targets.iter().zip(words.as_chunks().0) {
                target.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
            (behind, rest)
        }
        _ => (targets, bytes),
    }
}

/// Returns the first word of a piece, with its length and its first bytes, in memory order.
#[inline(always)]
const fn header(len: usize, head: u32) -> u64 {
    pair(INLINE | len as u32, head).to_be()
}

/// Returns up to 8 bytes as the first bytes of a word.
#[inline]
fn padded(bytes: &[u8]) -> u64 {
    bytes.iter().zip((0..8).rev()).fold(0, |word, (byte, target)| word | u64::from(*byte) << (8 * target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::wqe::MAX_INLINE;
    use crate::datapath::wqe::entry::{LEN, WORDS};
    use std::vec::Vec;

    /// Returns the expected bytes of the request, computed one by one.
    fn expected(unit: usize, bytes: &[u8]) -> (Vec<(usize, u8)>, usize) {
        let (mut targets, mut at, mut rest) = (Vec::new(), unit * UNIT, bytes);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(CHUNK - at % CHUNK - HEADER));
            let header = (1 << 31 | piece.len() as u32).to_be_bytes();
            targets.extend((at..).zip(header.iter().chain(piece).copied()));
            at = (at + HEADER + piece.len()).next_multiple_of(UNIT);
            rest = behind;
        }
        (targets, at / UNIT)
    }

    #[test]
    fn pieces_of_any_length_end_where_a_chunk_does() {
        let bytes: Vec<u8> = (0..MAX_INLINE).map(|n| n as u8 + 1).collect();
        for unit in [1, 2, 4] {
            for len in (0..=MAX_INLINE).step_by(if cfg!(miri) { 37 } else { 1 }) {
                let entry: Entry = [const { AtomicU64::new(0) }; WORDS];
                let end = write(&entry, unit, &bytes[..len]);
                let words = entry.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
                let mut written = [0; LEN];
                let (targets, behind) = expected(unit, &bytes[..len]);
                targets.into_iter().for_each(|(at, byte)| written[at] = byte);
                assert_eq!(
                    (words.collect::<Vec<_>>(), end),
                    (written.into(), behind),
                    "{len} from unit {unit}"
                );
            }
        }
    }
}
