//! The content of entries, which tells who wrote them.

use alloc::vec::Vec;

/// The length of the head of an entry, in bytes: rank and number of the commit.
const HEAD: usize = 16;

/// Returns the entry `index` of the commit `number` of a rank.
pub(crate) fn make(rank: u64, number: u64, index: u64, len: usize) -> Vec<u8> {
    let mut entry = Vec::with_capacity(len);
    entry.extend_from_slice(&rank.to_le_bytes());
    entry.extend_from_slice(&number.to_le_bytes());
    let seed = rank.wrapping_mul(31).wrapping_add(number).wrapping_mul(31).wrapping_add(index);
    entry.extend((entry.len()..len).map(|at| (seed as usize).wrapping_add(at * 7) as u8));
    entry
}

/// Returns the rank and the number of the commit to which `entry`, with that index, belongs. Returns `None`
/// if it is not as it was made.
pub(crate) fn parse(entry: &[u8], index: u64, len: usize) -> Option<(u64, u64)> {
    let (words, _) = entry.get(..HEAD)?.as_chunks::<8>();
    let [rank, number] = words else { return None };
    let [rank, number] = [rank, number].map(|word| u64::from_le_bytes(*word));
    (make(rank, number, index, len) == entry).then_some((rank, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_known_and_nothing_else_is_one() {
        for len in [16, 17, 300] {
            let mut entry = make(3, 70_000, 2, len);
            assert_eq!((entry.len(), parse(&entry, 2, len)), (len, Some((3, 70_000))));
            assert_eq!(parse(&entry[1..], 2, len), None);
            assert_eq!(parse(&entry, 2, len + 1), None);
            entry[len - 1] ^= 1;
            assert_ne!(parse(&entry, 2, len), Some((3, 70_000)));
        }
    }
}
