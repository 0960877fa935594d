//! The layouts of mailboxes and of queue entries, as named fields. The card uses them, and traces print them.

mod capabilities;
mod contexts;
mod entries;
mod queue_pair;
mod settings;

pub(crate) use capabilities::*;
pub(crate) use contexts::*;
pub(crate) use entries::*;
pub(crate) use queue_pair::*;
pub(crate) use settings::*;

use super::mailbox::Mailbox;

/// The length of an entry of a completion or event queue, in bytes. In a queue with entries of twice the
/// length, the entry is the second half.
pub(crate) const ENTRY: usize = 32;

/// A field of a mailbox or an entry: a range of bits in a big-endian 32-bit word.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    word: usize,
    high: u8,
    low: u8,
}

/// Returns the field of bits `high` to `low` in the word at an offset.
pub(crate) const fn bits(word: usize, high: u8, low: u8) -> Field {
    Field { word, high, low }
}

/// Returns the field of the whole word at an offset.
pub(crate) const fn word(offset: usize) -> Field {
    bits(offset, 31, 0)
}

/// Returns the field of the byte at an offset.
pub(crate) const fn byte(offset: usize) -> Field {
    let low = 8 * (3 - (offset & 3) as u8);
    bits(offset & !3, low + 7, low)
}

/// Returns the field of the 16 bits at an even offset.
pub(crate) const fn half(offset: usize) -> Field {
    let low = 8 * (2 - (offset & 2) as u8);
    bits(offset & !3, low + 15, low)
}

impl Field {
    /// Returns the offset of the field's word. A 64-bit field begins at the word of its high half.
    pub const fn word(self) -> usize {
        self.word
    }

    /// Returns the field `distance` bytes further on, for a structure that is repeated. The distance is a
    /// multiple of 4.
    pub const fn moved(self, distance: usize) -> Self {
        Self { word: self.word + distance, ..self }
    }

    /// Returns the mask of the field's bits in its word.
    pub const fn mask(self) -> u32 {
        (u32::MAX >> (31 - self.high)) & (u32::MAX << self.low)
    }

    /// Returns a word with the field set to a value. Bits of the value that exceed the field are ignored.
    pub const fn with(self, word: u32, value: u32) -> u32 {
        word & !self.mask() | (value << self.low) & self.mask()
    }

    /// Returns the field's value in its word.
    pub const fn of(self, word: u32) -> u32 {
        (word & self.mask()) >> self.low
    }

    /// Returns the field's value in an entry.
    pub(crate) fn get(self, entry: &[u8; ENTRY]) -> u32 {
        entry.as_chunks().0.get(self.word / 4).map_or(0, |word| self.of(u32::from_be_bytes(*word)))
    }

    /// Sets the field in an entry. Bits of the value that exceed the field are ignored.
    pub(crate) fn put(self, entry: &mut [u8; ENTRY], value: u32) {
        if let Some(word) = entry.as_chunks_mut().0.get_mut(self.word / 4) {
            *word = self.with(u32::from_be_bytes(*word), value).to_be_bytes();
        }
    }
}

impl Mailbox {
    /// Returns the value of a field.
    pub fn field(&self, field: Field) -> u32 {
        field.of(self.u32(field.word))
    }

    /// Returns the value of a 64-bit field, whose high half is `high`.
    pub fn double(&self, high: Field) -> u64 {
        self.u64(high.word)
    }

    /// Sets a field. Bits of the value that exceed the field are ignored.
    pub fn set(&mut self, field: Field, value: u32) {
        self.put_u32(field.word, field.with(self.u32(field.word), value));
    }

    /// Sets a 64-bit field, whose high half is `high`.
    pub fn set_double(&mut self, high: Field, value: u64) {
        self.put_u64(high.word, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_bits_of_their_word() {
        let mut mailbox = Mailbox::default();
        mailbox.set(byte(0x11), 0xab);
        mailbox.set(half(0x12), 0xcdef);
        mailbox.set(bits(0x10, 31, 28), 0x175);
        assert_eq!(mailbox.u32(0x10), 0x50ab_cdef);
        assert_eq!((mailbox.field(byte(0x11)), mailbox.field(bits(0x10, 11, 4))), (0xab, 0xde));
        let mut entry = [0; ENTRY];
        byte(0x1f).put(&mut entry, 0x1ab);
        bits(0x1c, 23, 8).put(&mut entry, 0x1234);
        assert_eq!(entry[0x1c..], [0, 0x12, 0x34, 0xab]);
        assert_eq!((half(0x1e).get(&entry), bits(0x1c, 6, 4).get(&entry)), (0x34ab, 2));
        mailbox.set_double(word(0x20), 1 << 40 | 7);
        assert_eq!((mailbox.field(word(0x20)), mailbox.double(word(0x20))), (1 << 8, 1 << 40 | 7));
    }
}
