//! Splits text into words. It classifies 64 bytes at once with plain integers (emulated processors run vector
//! code slowly), and extracts runs of ones from the mask.
//!
//! A word is a maximal run of ASCII letters, folded to lower case.

use crate::key::{SHORT, Short};

/// Receives the words of a text.
pub(crate) trait WordSink {
    /// Receives a word of up to 16 letters.
    fn short(&mut self, word: Short);

    /// Receives a longer word, not yet folded: the letters as in the text.
    fn long(&mut self, letters: &[u8]);
}

/// The least bit of every byte of a word.
const ONES: u64 = 0x0101_0101_0101_0101;
/// The top bit of every byte of a word.
const TOPS: u64 = 0x80 * ONES;
/// The bit of each byte that distinguishes lower case.
const CASE: u64 = 0x20 * ONES;

/// Folds one letter to lower case.
#[inline]
#[must_use]
pub(crate) const fn fold(letter: u8) -> u8 {
    letter | 0x20
}

/// Returns the top bit of each byte that is an ASCII letter.
#[inline]
const fn letter_tops(word: u64) -> u64 {
    let low = (word | CASE) & !TOPS;
    // No byte carries into the next: both sums are below 0x100.
    let from_a = low + (0x80 - b'a' as u64) * ONES;
    let past_z = low + (0x7f - b'z' as u64) * ONES;
    from_a & !past_z & !word & TOPS
}

/// Bytes that are classified at once.
const BLOCK: usize = 64;
/// Bytes that must be present to process a block: a word that starts at the block's end is read up to 16
/// letters further.
const REACH: usize = BLOCK + SHORT;

/// Returns the little-endian word at `at`.
#[inline]
fn load(bytes: &[u8; REACH], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_le_bytes(*word))
}

/// Returns a mask of the letters in a block: bit i for byte i.
#[inline]
fn letters(bytes: &[u8; REACH]) -> u64 {
    // The multiplication moves bit 8k to bit 56 + k.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    (0..BLOCK / 8)
        .map(|i| ((letter_tops(load(bytes, 8 * i)) >> 7).wrapping_mul(GATHER) >> 56) << (8 * i))
        .fold(0, |mask, bits| mask | bits)
}

/// Passes all words of `text` to `sink`, in order.
#[inline]
pub(crate) fn for_each(text: &[u8], sink: &mut impl WordSink) {
    let rest = blocks(text, sink);
    // Processes the last bytes with separators behind them.
    let mut padded = [0; 2 * REACH];
    for (to, from) in padded.iter_mut().zip(rest) {
        *to = *from;
    }
    blocks(&padded, sink);
}

/// Passes on words while at least [`REACH`] bytes are left. Returns the remaining bytes, which do not begin
/// inside a word.
#[inline(always)]
fn blocks<'a>(text: &'a [u8], sink: &mut impl WordSink) -> &'a [u8] {
    let mut rest = text;
    while let Some(reach) = rest.first_chunk::<REACH>() {
        let mut runs = letters(reach);
        let mut next = BLOCK;
        while runs != 0 {
            let start = (runs.trailing_zeros() as usize) & (BLOCK - 1);
            let len = (!(runs >> start)).trailing_zeros() as usize;
            if start + len >= BLOCK {
                // The word may continue. It comes first in the next block, unless it fills this one.
                next = if start > 0 { start } else { long(rest, sink) };
                break;
            }
            let first = load(reach, start) | CASE;
            if len <= 8 {
                sink.short(Short::from_word(first, len as u32));
            } else if len <= SHORT {
                sink.short(Short::from_words(first, load(reach, start + 8) | CASE, len as u32 - 8));
            } else {
                sink.long(rest.get(start..start + len).unwrap_or_default());
            }
            // The carry runs through the lowest run of ones and clears it.
            runs &= runs.wrapping_add(1 << start);
        }
        rest = rest.get(next..).unwrap_or_default();
    }
    rest
}

/// Passes on the word at the front of `text`, which has more than 16 letters. Returns its length.
#[cold]
fn long(text: &[u8], sink: &mut impl WordSink) -> usize {
    let (words, _) = text.as_chunks::<8>();
    let whole = 8 * words.iter().take_while(|&&word| letter_tops(u64::from_le_bytes(word)) == TOPS).count();
    let more =
        text.get(whole..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let (word, _) = text.split_at(whole + more);
    sink.long(word);
    word.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::table::Table;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// Splits words by the definition, one byte at a time.
    fn model(text: &[u8]) -> Vec<Vec<u8>> {
        text.split(|b| !b.is_ascii_alphabetic())
            .filter(|w| !w.is_empty())
            .map(<[u8]>::to_ascii_lowercase)
            .collect()
    }

    #[derive(Default)]
    struct Collect(Vec<Vec<u8>>);

    impl WordSink for Collect {
        fn short(&mut self, word: Short) {
            let mut table = Table::new(crate::key::Seed::KNOWN);
            table.add(Key::Short(word), (), |(), ()| ());
            let entries = table.into_entries().unwrap();
            self.0.push(entries.list[0].key(&entries.arena, &mut [0; SHORT]).to_vec());
        }
        fn long(&mut self, letters: &[u8]) {
            assert!(letters.len() > SHORT);
            self.0.push(letters.iter().map(|&b| fold(b)).collect());
        }
    }

    fn words(text: &[u8]) -> Vec<Vec<u8>> {
        let mut sink = Collect::default();
        for_each(text, &mut sink);
        sink.0
    }

    #[test]
    fn every_byte_value_is_classified() {
        for byte in 0..=255u8 {
            for at in 0..8 {
                let mut text = *b"xyzXYZab";
                text[at] = byte;
                let expected = if byte.is_ascii_alphabetic() { TOPS } else { TOPS & !(0x80 << (8 * at)) };
                assert_eq!(letter_tops(u64::from_le_bytes(text)), expected, "{byte:#x} at {at}");
            }
        }
    }

    #[test]
    fn words_of_all_lengths_at_all_distances_from_the_end() {
        for len in (0..40).chain(60..85) {
            for before in (0..10).chain(40..90) {
                for after in (0..4).chain(60..84) {
                    let mut text = alloc::vec![b'-'; before];
                    text.extend((0..len).map(|i| if i % 3 == 0 { b'Q' } else { b'z' }));
                    text.extend(core::iter::repeat_n(b'[', after));
                    assert_eq!(words(&text), model(&text), "{len} {before} {after}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn like_the_definition(text in proptest::collection::vec(
            prop_oneof![Just(b'a'), Just(b'Z'), Just(b' '), any::<u8>()], 0..500))
        {
            prop_assert_eq!(words(&text), model(&text));
        }

        #[test]
        fn mostly_letters(text in proptest::collection::vec(
            prop_oneof![40 => b'a'..=b'z', 1 => any::<u8>()], 0..900))
        {
            prop_assert_eq!(words(&text), model(&text));
        }
    }

    #[test]
    fn counts_are_the_same() {
        let text = b"The cat and THE dog, the_end! \xe9t\xe9 a a A\n";
        let mut counts = BTreeMap::new();
        for word in words(text) {
            *counts.entry(word).or_insert(0) += 1;
        }
        assert_eq!(counts[&b"the"[..]], 3);
        assert_eq!(counts[&b"a"[..]], 3);
        assert_eq!(counts[&b"t"[..]], 1);
    }
}
