//! Cuts text into words, eight bytes at a time in plain integers (emulated processors run vector code slowly).
//!
//! A word is a maximal run of ASCII letters, folded to lower case.

use crate::key::{Key, SHORT, Short};

/// Takes the words of a text.
pub trait WordSink {
    /// A word of up to 16 letters.
    fn short(&mut self, word: Short);

    /// A longer word, not yet folded: the letters as they stand in the text.
    fn long(&mut self, letters: &[u8]);
}

/// One in every byte of a word.
const ONES: u64 = 0x0101_0101_0101_0101;
/// The top bit of every byte.
const TOPS: u64 = 0x80 * ONES;
/// What makes a letter lower case.
const CASE: u64 = 0x20 * ONES;

/// Folds one letter.
#[inline]
#[must_use]
pub const fn fold(letter: u8) -> u8 {
    letter | 0x20
}

/// The top bit of each byte that is not an ASCII letter.
#[inline]
const fn separators(word: u64) -> u64 {
    let low = (word | CASE) & !TOPS;
    // No byte carries into the next: both sums are below 0x100.
    let from_a = low + (0x80 - b'a' as u64) * ONES;
    let past_z = low + (0x7f - b'z' as u64) * ONES;
    (!from_a | past_z | word) & TOPS
}

/// Bytes before the first one whose top bit is set in `tops`; 8 if none is.
#[inline]
const fn bytes_before(tops: u64) -> u32 {
    tops.trailing_zeros() / 8
}

/// Eight bytes from `at` on as a little-endian word; past the end come zeros, which are separators.
#[inline]
fn load(text: &[u8], at: usize) -> u64 {
    match text.get(at..).and_then(<[u8]>::first_chunk) {
        Some(word) => u64::from_le_bytes(*word),
        None => load_end(text, at),
    }
}

#[cold]
fn load_end(text: &[u8], at: usize) -> u64 {
    text.get(at..).map_or(0, |rest| rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)))
}

/// Hands all words of `text` to `sink`, in order.
#[inline]
pub fn for_each(text: &[u8], sink: &mut impl WordSink) {
    let mut at = 0;
    while at < text.len() {
        let first = load(text, at);
        let stops = separators(first);
        if stops & 0x80 != 0 {
            // Skip the separators.
            at += bytes_before(stops ^ TOPS) as usize;
            continue;
        }
        if stops != 0 {
            let len = bytes_before(stops);
            sink.short(Short::from_word(first | CASE, len));
            // What ended the word need not be looked at again.
            at += len as usize + 1;
            continue;
        }
        let second = load(text, at + 8);
        let stops = separators(second);
        let more = bytes_before(stops);
        if stops != 0 {
            sink.short(Short::from_words(first | CASE, second | CASE, more));
            at += 8 + more as usize + 1;
            continue;
        }
        let len = SHORT + letters(text, at + SHORT);
        let word = text.get(at..at + len).unwrap_or_default();
        match Key::from(word) {
            Key::Short(_) => sink.short(Short::from_words(first | CASE, second | CASE, 8)),
            Key::Long(word) => sink.long(word),
        }
        at += len + 1;
    }
}

/// How many letters stand from `at` on.
fn letters(text: &[u8], at: usize) -> usize {
    let mut end = at;
    loop {
        let stops = separators(load(text, end));
        end += bytes_before(stops) as usize;
        if stops != 0 {
            return end - at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// Words by the definition, one byte at a time.
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
            let mut table = Table::new();
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
                let expected = if byte.is_ascii_alphabetic() { 0 } else { 0x80 << (8 * at) };
                assert_eq!(separators(u64::from_le_bytes(text)), expected, "{byte:#x} at {at}");
            }
        }
    }

    #[test]
    fn words_of_all_lengths_at_all_distances_from_the_end() {
        for len in 0..40 {
            for before in 0..10 {
                for after in 0..10 {
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
            prop_oneof![Just(b'a'), Just(b'Z'), Just(b' '), any::<u8>()], 0..300))
        {
            prop_assert_eq!(words(&text), model(&text));
        }

        #[test]
        fn mostly_letters(text in proptest::collection::vec(
            prop_oneof![40 => b'a'..=b'z', 1 => any::<u8>()], 0..300))
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
