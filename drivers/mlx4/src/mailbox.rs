//! Big-endian structures: mailboxes, and named fields of their 32-bit words.

use alloc::boxed::Box;

/// The length of a mailbox, in bytes.
pub(crate) const MAILBOX: usize = 4096;

/// A field: bits of the 32-bit word at a byte offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    word: usize,
    low: u32,
    mask: u32,
}

impl Field {
    /// Makes a field of bits `high` down to `low` of the word at byte offset `word`.
    pub(crate) const fn bits(word: usize, high: u32, low: u32) -> Self {
        assert!(word.is_multiple_of(4) && word < MAILBOX && low <= high && high < 32);
        Self { word, low, mask: u32::MAX >> (31 - (high - low)) }
    }
    /// Makes a field of the whole word.
    pub(crate) const fn word(word: usize) -> Self {
        Self::bits(word, 31, 0)
    }
    /// Makes a field of the byte at an offset.
    pub(crate) const fn byte(at: usize) -> Self {
        let low = (3 - at % 4) as u32 * 8;
        Self::bits(at - at % 4, low + 7, low)
    }
    /// Makes a field of the 16-bit word at an even offset.
    pub(crate) const fn half(at: usize) -> Self {
        assert!(at.is_multiple_of(2));
        let low = (2 - at % 4) as u32 * 8;
        Self::bits(at - at % 4, low + 15, low)
    }
    /// Makes a field of one bit.
    pub(crate) const fn bit(word: usize, bit: u32) -> Self {
        Self::bits(word, bit, bit)
    }
    /// Returns the field in a structure that begins `bytes` further on.
    pub(crate) const fn after(self, bytes: usize) -> Self {
        assert!(bytes.is_multiple_of(4) && self.word + bytes < MAILBOX);
        Self { word: self.word + bytes, ..self }
    }
}

/// The memory from which a command reads its input, or to which it writes its output.
#[derive(Clone)]
pub(crate) struct Mailbox(Box<[u8; MAILBOX]>);

impl Mailbox {
    /// Makes a mailbox of zeros.
    pub(crate) fn new() -> Self {
        Self(Box::new([0; MAILBOX]))
    }

    /// Returns the bytes as words in memory order.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        self.0.as_chunks().0.iter().map(|bytes| u64::from_ne_bytes(*bytes))
    }

    /// Makes a mailbox of words in memory order.
    pub(crate) fn from_words(words: impl Iterator<Item = u64>) -> Self {
        let mut mailbox = Self::new();
        for (target, word) in mailbox.0.as_chunks_mut().0.iter_mut().zip(words) {
            *target = word.to_ne_bytes();
        }
        mailbox
    }

    fn word(&self, at: usize) -> u32 {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    /// Returns a field's value.
    pub(crate) fn get(&self, field: Field) -> u32 {
        self.word(field.word) >> field.low & field.mask
    }

    /// Returns true if a field is not zero.
    pub(crate) fn has(&self, field: Field) -> bool {
        self.get(field) != 0
    }

    /// Returns the 64-bit word at an offset.
    pub(crate) fn wide(&self, at: usize) -> u64 {
        u64::from(self.word(at)) << 32 | u64::from(self.word(at + 4))
    }

    /// Sets a field to the low bits of `value`.
    pub(crate) fn set(&mut self, field: Field, value: u32) {
        let cleared = self.word(field.word) & !(field.mask << field.low);
        let word = cleared | (value & field.mask) << field.low;
        self.put(field.word, &word.to_be_bytes());
    }

    /// Returns the mailbox with a field set.
    #[must_use]
    pub(crate) fn with(mut self, field: Field, value: u32) -> Self {
        self.set(field, value);
        self
    }

    /// Sets bits of the 64-bit word at an offset. Bits that were set stay, since small fields share the low
    /// bits of addresses.
    pub(crate) fn set_wide(&mut self, at: usize, value: u64) {
        self.put(at, &(self.wide(at) | value).to_be_bytes());
    }

    /// Copies bytes to an offset.
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(target) = self.0.get_mut(at..at + bytes.len()) {
            target.copy_from_slice(bytes);
        }
    }

    /// Returns the bytes at an offset.
    pub(crate) fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_documents_count_them() {
        let mut mailbox = Mailbox::new();
        mailbox.set(Field::byte(0x09), 0xab);
        mailbox.set(Field::half(0x0a), 0x1234);
        mailbox.set(Field::bits(0x0c, 28, 24), 0x1f);
        mailbox.set(Field::bit(0x0c, 0), 1);
        mailbox.set_wide(0x10, 0x1122_3344_5566_7700);
        mailbox.set(Field::bits(0x14, 4, 0), 0xff);
        assert_eq!(
            mailbox.array::<16>(0x08),
            [0, 0xab, 0x12, 0x34, 0x1f, 0, 0, 1, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x1f]
        );
        assert_eq!(
            (mailbox.get(Field::half(0x0a)), mailbox.wide(0x10) & !0x1f),
            (0x1234, 0x1122_3344_5566_7700)
        );
        assert_eq!(mailbox.get(Field::byte(0x08).after(1 << 2)), 0x1f);
        let again = Mailbox::from_words(mailbox.words());
        assert_eq!(again.array::<24>(0), mailbox.array::<24>(0));
    }
}
