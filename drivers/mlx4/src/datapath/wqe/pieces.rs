//! Inline payload, in pieces.

use super::entry::{CHUNK, CHUNK_WORDS, Entry, UNIT};
use core::sync::atomic::{AtomicU64, Ordering};

/// The size of the header of a piece, in bytes.
pub(super) const HEADER: usize = 4;
/// Flag in the header of a data segment: the data is inline.
const INLINE: u32 = 1 << 31;
/// The length of the data of a piece that fills a chunk, in bytes.
const ROOM: usize = CHUNK - HEADER;

/// Writes bytes from a unit of a request on. Each piece has a header and ends at a chunk boundary. Returns
/// the index of the unit after them.
#[inline(always)]
pub(super) fn write(entry: &Entry, unit: usize, bytes: &[u8]) -> usize {
    const UNITS: usize = CHUNK / UNIT;
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
        return unit + units(bytes);
    };
    fill(targets, piece);
    let mut end = (unit / UNITS + 1) * UNITS;
    for chunk in others {
        let Some((piece, rest)) = bytes.split_first_chunk::<ROOM>() else {
            if !bytes.is_empty() {
                fill_part(chunk, bytes);
                end += units(bytes);
            }
            break;
        };
        fill(chunk, piece);
        (bytes, end) = (rest, end + UNITS);
    }
    end
}

/// Returns the number of units of a piece.
#[inline(always)]
const fn units(piece: &[u8]) -> usize {
    (HEADER + piece.len()).div_ceil(UNIT)
}

/// Writes a piece that fills its units. The word with its header is stored last.
#[inline(always)]
fn fill(targets: &[AtomicU64], piece: &[u8]) {
    if let (Some((first, targets)), Some((head, behind))) = (targets.split_first(), piece.split_first_chunk())
    {
        for (target, word) in targets.iter().zip(behind.as_chunks().0) {
            target.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        first.store(header(piece.len(), *head), Ordering::Release);
    }
}

/// Writes a piece that may be shorter than its units.
#[inline(always)]
fn fill_part(targets: &[AtomicU64], piece: &[u8]) {
    let Some((first, targets)) = targets.split_first() else { return };
    let Some((head, behind)) = piece.split_first_chunk() else {
        let byte = |n: usize| piece.get(n).copied().unwrap_or(0);
        first.store(header(piece.len(), [byte(0), byte(1), byte(2), 0]), Ordering::Release);
        return;
    };
    let (words, tail) = behind.as_chunks();
    if !tail.is_empty()
        && let Some(target) = targets.get(words.len())
    {
        target.store(last(piece, tail.len()), Ordering::Relaxed);
    }
    for (target, word) in targets.iter().zip(words) {
        target.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
    }
    first.store(header(piece.len(), *head), Ordering::Release);
}

/// Returns the last 1 to 7 bytes of a piece of more than 4 as the first bytes of a word, in memory order.
#[inline(always)]
const fn last(piece: &[u8], count: usize) -> u64 {
    let word = match (piece.last_chunk(), piece.last_chunk()) {
        (Some(eight), _) => u64::from_le_bytes(*eight) >> (64 - 8 * count),
        (None, Some(four)) => (u32::from_le_bytes(*four) >> (32 - 8 * count)) as u64,
        (None, None) => 0,
    };
    word.to_le()
}

/// Returns the first word of a piece, with its length and its first bytes, in memory order.
#[inline(always)]
const fn header(len: usize, head: [u8; HEADER]) -> u64 {
    // A little-endian processor need not swap the bytes of `head` twice.
    ((u32::from_le_bytes(head) as u64) << 32 | (INLINE | len as u32).swap_bytes() as u64).to_le()
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
