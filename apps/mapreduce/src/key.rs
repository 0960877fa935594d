//! Keys: byte strings of any length. Keys of up to 16 bytes are held in two integers.

use platform::Platform;

/// The length of the longest [`Short`] key, in bytes.
pub const SHORT: usize = 16;

/// A key that a map function passes to an emitter.
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

/// A key of at most 16 bytes, stored in memory order in two little-endian words. Unused bytes are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    lo: u64,
    hi: u64,
    len: u32,
}

impl Short {
    /// Returns the key with these bytes, or `None` if there are more than 16.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut padded = [0u8; SHORT];
        padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let whole = u128::from_le_bytes(padded);
        Some(Self { lo: whole as u64, hi: (whole >> 64) as u64, len: bytes.len() as u32 })
    }

    /// Returns the key with the first `len` bytes (at most 8) of a little-endian word.
    #[inline]
    #[must_use]
    pub const fn from_word(word: u64, len: u32) -> Self {
        debug_assert!(len <= 8);
        Self { lo: word & low_bytes(len), hi: 0, len }
    }

    /// Returns the key with a whole little-endian word and the first `more` bytes (at most 8) of the next.
    #[inline]
    #[must_use]
    pub const fn from_words(lo: u64, hi: u64, more: u32) -> Self {
        debug_assert!(more <= 8);
        Self { lo, hi: hi & low_bytes(more), len: 8 + more }
    }

    /// Returns the key with these parts, which must come from another short key.
    pub(crate) const fn from_parts(lo: u64, hi: u64, len: u32) -> Self {
        Self { lo, hi, len }
    }

    /// Returns the first eight bytes as a little-endian word.
    pub(crate) const fn lo(self) -> u64 {
        self.lo
    }

    /// Returns bytes 8 to 15 as a little-endian word.
    pub(crate) const fn hi(self) -> u64 {
        self.hi
    }

    /// Returns the length, in bytes.
    pub(crate) const fn len(self) -> u32 {
        self.len
    }

    /// Returns the key's hash under a seed.
    #[inline]
    pub(crate) const fn hash(self, seed: Seed) -> u64 {
        fold(wide_mix(self.lo ^ seed.lo, self.hi ^ seed.hi ^ self.len as u64))
    }
}

/// Returns the hash of a key of more than 16 bytes under a seed.
pub(crate) fn hash_long(bytes: &[u8], seed: Seed) -> u64 {
    let mut words = bytes.chunks_exact(8);
    let mut state = seed.lo ^ bytes.len() as u64;
    for word in &mut words {
        state = wide_mix(state ^ word_of(word), seed.hi);
    }
    fold(wide_mix(state ^ word_of(words.remainder()), seed.lo ^ seed.hi))
}

/// Returns the index of the share that a key with this hash belongs to, of `parts` equal shares of the hash
/// space. The function is called for few keys and can afford another multiplication: the high bits of a hash
/// alone are not evenly distributed for consecutive keys.
pub(crate) fn part_of(hash: u64, seed: Seed, parts: usize) -> usize {
    let even = wide_mix(hash ^ seed.hi, Seed::KNOWN.lo);
    ((u128::from(even) * parts as u128) >> 64) as usize
}

/// Returns the first eight bytes, or fewer, as a little-endian word. Missing bytes are zero.
#[inline]
pub(crate) fn word_of(bytes: &[u8]) -> u64 {
    if let Some(word) = bytes.first_chunk() {
        return u64::from_le_bytes(*word);
    }
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Returns a mask of the first `len` bytes (at most 8) of a little-endian word.
#[inline]
const fn low_bytes(len: u32) -> u64 {
    if len == 0 { 0 } else { u64::MAX >> (64 - 8 * len) }
}

/// The seed of a hash function. Both factors of the hash's product depend on it. An author of a job's input
/// who does not know the seed cannot choose keys whose hashes are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed {
    lo: u64,
    hi: u64,
}

impl Seed {
    /// The length of an encoded seed, in bytes.
    pub(crate) const LEN: usize = 16;

    /// A known seed, for one processor and trusted input. The value is the first digits of pi's fraction.
    pub(crate) const KNOWN: Self = Self { lo: 0x243f_6a88_85a3_08d3, hi: 0x1319_8a2e_0370_7345 };

    /// Returns an unpredictable seed.
    pub(crate) fn random(platform: &dyn Platform) -> Self {
        let mut bytes = [0; Self::LEN];
        platform.fill_random(&mut bytes);
        Self::from_bytes(bytes)
    }

    pub(crate) const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let both = u128::from_le_bytes(bytes);
        Self { lo: both as u64, hi: (both >> 64) as u64 }
    }

    pub(crate) const fn to_bytes(self) -> [u8; Self::LEN] {
        ((self.hi as u128) << 64 | self.lo as u128).to_le_bytes()
    }
}

/// Mixes the high half of a word into the low half.
#[inline]
const fn fold(wide: u64) -> u64 {
    wide ^ wide >> 32
}

/// Multiplies to 128 bits and folds the halves, so that every bit of both factors reaches all bits of the
/// result.
#[inline]
const fn wide_mix(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::format;
    use alloc::vec::Vec;

    /// Returns seeds that differ in all bits.
    fn seeds() -> impl Iterator<Item = Seed> {
        (0..20u64).map(|n| {
            let word = |m: u64| wide_mix((n * 2 + m) ^ Seed::KNOWN.lo, Seed::KNOWN.hi);
            Seed { lo: word(0), hi: word(1) }
        })
    }

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
    fn hashes_spread_over_low_bits_and_shares() {
        let hashes = |f: &dyn Fn(u32) -> u64, seed: Seed| -> (usize, usize) {
            let low: BTreeSet<u64> = (0..4096).map(|i| f(i) & 0xfff).collect();
            let shares: BTreeSet<usize> = (0..4096).map(|i| part_of(f(i), seed, 4096)).collect();
            (low.len(), shares.len())
        };
        for seed in seeds().chain([Seed::KNOWN]) {
            let short = |i| Short::from_bytes(format!("{i}").as_bytes()).unwrap().hash(seed);
            let grid = |i| Short::from_bytes(&u64::from(i).to_be_bytes()).unwrap().hash(seed);
            let text = |i| format!("a key of more than sixteen bytes, number {i}");
            let long = |i| hash_long(text(i).as_bytes(), seed);
            // 4096 random values fall on 1 - 1/e of 4096 slots: 2589, with a standard deviation of about 31.
            for (low, shares) in [hashes(&short, seed), hashes(&grid, seed), hashes(&long, seed)] {
                assert!(low > 1900 && shares > 2450, "{seed:?}: {low} {shares}");
            }
        }
    }

    #[test]
    fn seeds_travel_as_bytes_and_change_every_hash() {
        let keys: Vec<Vec<u8>> = (0..40).map(|len| alloc::vec![b'a'; len]).collect();
        for seed in seeds() {
            assert_eq!(Seed::from_bytes(seed.to_bytes()), seed);
            for key in &keys {
                let of =
                    |seed| Short::from_bytes(key).map_or_else(|| hash_long(key, seed), |key| key.hash(seed));
                assert_ne!(of(seed), of(Seed::KNOWN), "{key:?}");
            }
        }
    }

    #[test]
    fn trailing_zero_bytes_count() {
        let hash = |bytes: &[u8]| Short::from_bytes(bytes).unwrap().hash(Seed::KNOWN);
        let hash_long = |bytes: &[u8]| hash_long(bytes, Seed::KNOWN);
        assert_ne!(Short::from_bytes(b"a"), Short::from_bytes(b"a\0"));
        assert_ne!(hash(b"a"), hash(b"a\0"));
        assert_ne!(hash_long(&[0; 17]), hash_long(&[0; 18]));
    }
}
