//! Keys: byte strings of any length, with those of up to 16 bytes held in two integers.

/// Bytes that a [`Short`] key holds at most.
pub const SHORT: usize = 16;

/// A key as a map function hands it over.
#[derive(Clone, Copy, Debug)]
pub enum Key<'a> {
    /// At most 16 bytes.
    Short(Short),
    /// More than 16 bytes.
    Long(&'a [u8]),
}

impl<'a> From<&'a [u8]> for Key<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Short::from_bytes(bytes).map_or(Key::Long(bytes), Key::Short)
    }
}

/// A key of at most 16 bytes, in memory order in two little-endian words, the unused bytes zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    lo: u64,
    hi: u64,
    len: u32,
}

impl Short {
    /// The key with these bytes, or `None` if they are more than 16.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut padded = [0u8; SHORT];
        padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let whole = u128::from_le_bytes(padded);
        Some(Self { lo: whole as u64, hi: (whole >> 64) as u64, len: bytes.len() as u32 })
    }

    /// The first `len` bytes (at most 8) of a little-endian word.
    #[inline]
    #[must_use]
    pub const fn from_word(word: u64, len: u32) -> Self {
        debug_assert!(len <= 8);
        Self { lo: word & low_bytes(len), hi: 0, len }
    }

    /// A whole little-endian word and the first `more` bytes (at most 8) of the next.
    #[inline]
    #[must_use]
    pub const fn from_words(lo: u64, hi: u64, more: u32) -> Self {
        debug_assert!(more <= 8);
        Self { lo, hi: hi & low_bytes(more), len: 8 + more }
    }

    /// The key with these words and this length, as another short key had them.
    pub(crate) const fn from_parts(lo: u64, hi: u64, len: u32) -> Self {
        Self { lo, hi, len }
    }

    /// The first eight bytes as a word, little-endian.
    pub(crate) const fn lo(self) -> u64 {
        self.lo
    }

    /// The other eight.
    pub(crate) const fn hi(self) -> u64 {
        self.hi
    }

    /// Bytes.
    pub(crate) const fn len(self) -> u32 {
        self.len
    }

    /// The key's hash, the same on every node.
    #[inline]
    pub(crate) const fn hash(self) -> u32 {
        mix(self.lo ^ SEED_LO, self.hi ^ SEED_HI ^ self.len as u64)
    }
}

/// The hash of a key of more than 16 bytes, the same on every node.
pub(crate) fn hash_long(bytes: &[u8]) -> u32 {
    let mut words = bytes.chunks_exact(8);
    let mut state = SEED_LO ^ bytes.len() as u64;
    for word in &mut words {
        state = wide_mix(state ^ word_of(word), SEED_HI);
    }
    mix(state ^ word_of(words.remainder()), SEED_LO ^ SEED_HI)
}

/// The first eight bytes at most as a little-endian word, missing ones zero.
#[inline]
pub(crate) fn word_of(bytes: &[u8]) -> u64 {
    if let Some(word) = bytes.first_chunk() {
        return u64::from_le_bytes(*word);
    }
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Ones in the first `len` bytes (at most 8) of a little-endian word.
#[inline]
const fn low_bytes(len: u32) -> u64 {
    if len == 0 { 0 } else { u64::MAX >> (64 - 8 * len) }
}

/// Odd constants without structure: the digits of pi, as in many a cipher.
const SEED_LO: u64 = 0x243f_6a88_85a3_08d3;
const SEED_HI: u64 = 0x1319_8a2e_0370_7345;

/// Multiplies to 128 bits and folds the halves, so that every bit of both reaches all bits.
#[inline]
const fn wide_mix(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

#[inline]
const fn mix(a: u64, b: u64) -> u32 {
    let wide = wide_mix(a, b);
    wide as u32 ^ (wide >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::format;

    #[test]
    fn bytes_and_words_make_the_same_short_key() {
        let text = *b"abcdefghijklmnopqrstuvwxyz";
        let word = |at: usize| u64::from_le_bytes(*text[at..].first_chunk().unwrap());
        for len in 0..=8 {
            assert_eq!(Short::from_bytes(&text[..len]), Some(Short::from_word(word(0), len as u32)));
        }
        for len in 8..=16 {
            let key = Short::from_words(word(0), word(8), len as u32 - 8);
            assert_eq!(Short::from_bytes(&text[..len]), Some(key));
        }
        assert_eq!(Short::from_bytes(&text[..17]), None);
    }

    #[test]
    fn hashes_spread_over_low_and_high_bits() {
        let hashes = |f: &dyn Fn(u32) -> u32| -> (usize, usize) {
            let low: BTreeSet<u32> = (0..4096).map(|i| f(i) & 0xfff).collect();
            let high: BTreeSet<u32> = (0..4096).map(|i| f(i) >> 20).collect();
            (low.len(), high.len())
        };
        let short = |i| Short::from_bytes(format!("{i}").as_bytes()).unwrap().hash();
        let grid = |i| Short::from_bytes(&u64::from(i).to_be_bytes()).unwrap().hash();
        let long = |i| hash_long(format!("a key of more than sixteen bytes, number {i}").as_bytes());
        // 4096 random values fall on 1 - 1/e of 4096 places: 2589, with a deviation of some 31.
        for (low, high) in [hashes(&short), hashes(&grid), hashes(&long)] {
            assert!(low > 2400 && high > 2400, "{low} {high}");
        }
    }

    #[test]
    fn trailing_zero_bytes_count() {
        let hash = |bytes: &[u8]| Short::from_bytes(bytes).unwrap().hash();
        assert_ne!(Short::from_bytes(b"a"), Short::from_bytes(b"a\0"));
        assert_ne!(hash(b"a"), hash(b"a\0"));
        assert_ne!(hash_long(&[0; 17]), hash_long(&[0; 18]));
    }
}
