//! CRC-32 by shifts and exclusive ors of words, without tables, for long runs of bytes on processors without
//! carry-less multiplication. In particular a loaded byte of a table costs TCG more than several shifts.
//!
//! `x^300 + x^155 + x^117 + x^89 + 1` is a multiple of the polynomial of CRC-32 (a test divides
//! it). A bit of the message may therefore be cleared if the bits 145, 183, 211 and 300 places
//! behind it are inverted: the CRC of the message stays the same. [`feed`] clears the words of the
//! message one after the other, and leaves the last few words, which have taken over all of the
//! message, to the tables. The technique is described by Russell et al., "Chorba: A novel CRC32
//! implementation" (2024).

use super::{Ones, table};

/// The number of words that a cleared word changes at most.
const REACH: usize = 5;
/// The shortest run of words for which the clearing pays.
const SHORTEST: usize = 16;

/// Returns the CRC register after `bytes`, from `crc` before them.
pub(super) fn feed(crc: u32, ones: &Ones, bytes: &[u8]) -> u32 {
    let (words, _) = bytes.as_chunks::<8>();
    if words.len() < SHORTEST {
        return table::feed(crc, ones, bytes);
    }
    // The first words can have ones. The last words remain.
    let (first, others) = words.split_at(Ones::USED / 8);
    let (middle, _) = others.as_chunks::<REACH>();
    let middle = middle.split_at(middle.len() - 1).0;
    let mut cleared = Cleared([0; REACH]);
    let mut carried = u64::from(crc);
    for (word, ones) in first.iter().zip(ones.0.as_chunks::<8>().0) {
        cleared.clear((u64::from_le_bytes(*word) | u64::from_le_bytes(*ones)) ^ carried);
        carried = 0;
    }
    for five in middle {
        for word in five {
            cleared.clear(u64::from_le_bytes(*word));
        }
    }
    let done = Ones::USED + 8 * REACH * middle.len();
    let Some((changed, rest)) = bytes.get(done..).and_then(|left| left.split_first_chunk::<{ 8 * REACH }>())
    else {
        return table::feed(crc, ones, bytes);
    };
    let mut left = *changed;
    for word in left.as_chunks_mut::<8>().0 {
        *word = (u64::from_le_bytes(*word) ^ cleared.change()).to_le_bytes();
        cleared.pass(0);
    }
    table::feed(table::feed(0, &Ones::NONE, &left), &Ones::NONE, rest)
}

/// The last words as they were when they were cleared, the latest first; zero for a word that is not cleared.
struct Cleared([u64; REACH]);

impl Cleared {
    /// Returns the change that the cleared words make to the next word.
    #[inline(always)]
    const fn change(&self) -> u64 {
        let [_, b, c, d, e] = self.0;
        behind(b, c, 145) ^ behind(b, c, 183) ^ behind(c, d, 211) ^ behind(d, e, 300)
    }

    /// Clears the next word of the message.
    #[inline(always)]
    const fn clear(&mut self, word: u64) {
        let word = word ^ self.change();
        self.pass(word);
    }

    /// Goes on by one word, from which `cleared` was cleared.
    #[inline(always)]
    const fn pass(&mut self, cleared: u64) {
        let [a, b, c, d, _] = self.0;
        self.0 = [cleared, a, b, c, d];
    }
}

/// Returns the bits that are `places` behind those of two successive words, as far as they fall
/// into one word.
#[inline(always)]
const fn behind(later: u64, earlier: u64, places: u32) -> u64 {
    later << (places % 64) | earlier >> (64 - places % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns `x^power` modulo the polynomial, whose lowest power is in the highest bit.
    fn power_of_x(power: u32) -> u32 {
        (0..power).fold(1 << 31, |x, _| if x & 1 == 1 { x >> 1 ^ table::POLYNOMIAL } else { x >> 1 })
    }

    #[test]
    fn the_sparse_polynomial_is_a_multiple() {
        assert_eq!([300, 155, 117, 89, 0].map(power_of_x).into_iter().fold(0, |a, b| a ^ b), 0);
    }

    proptest! {
        #[test]
        fn equals_the_tables(
            crc: u32,
            ones in proptest::collection::vec(0usize..64, 0..8),
            bytes in proptest::collection::vec(any::<u8>(), 0..5000),
        ) {
            let ones = Ones::new(0x3c, &ones);
            prop_assert_eq!(feed(crc, &ones, &bytes), table::feed(crc, &ones, &bytes));
        }
    }

    #[test]
    fn equals_the_tables_for_each_length() {
        let bytes: [u8; 300] = core::array::from_fn(|i| (i * 91 + 7) as u8);
        for len in 0..bytes.len() {
            let bytes = &bytes[..len];
            assert_eq!(feed(99, &Ones::NONE, bytes), table::feed(99, &Ones::NONE, bytes), "{len} bytes");
        }
    }
}
