//! The arguments of a map function: a piece of input, and the receiver of keys and values.

use crate::MapReduce;
use crate::key::{Key, Short};
use crate::table::Table;
use crate::words::{self, WordSink};

/// A piece of one input file that ends where the job's cut rule allows, or at the file's end.
#[derive(Clone, Copy, Debug)]
pub struct Split<'a> {
    /// Index of the file in the job's inputs.
    pub file: u32,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// The bytes of the piece.
    pub bytes: &'a [u8],
}

/// Receives the keys and values of one worker, and combines the values of equal keys at once.
#[derive(Debug)]
pub struct Emitter<'a, M: MapReduce> {
    job: &'a M,
    table: &'a mut Table<M::Value>,
    records: u64,
}

impl<'a, M: MapReduce> Emitter<'a, M> {
    pub(crate) fn new(job: &'a M, table: &'a mut Table<M::Value>) -> Self {
        Self { job, table, records: 0 }
    }

    /// Returns the number of values that were added.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Emits `value` for `key`: combines it with the values that this task has emitted for the key before.
    #[inline]
    pub fn add<'k>(&mut self, key: impl Into<Key<'k>>, value: M::Value) {
        self.records += 1;
        self.table.add(key.into(), value, |into, more| self.job.combine(into, more));
    }

    /// Adds a value to each word of `text`. A word is a maximal run of ASCII letters, folded to lower case.
    #[inline]
    pub fn add_words(&mut self, text: &[u8], value: impl Fn() -> M::Value) {
        words::for_each(text, &mut Words { emit: self, value });
    }
}

/// Adds words as keys.
struct Words<'e, 'a, M: MapReduce, F> {
    emit: &'e mut Emitter<'a, M>,
    value: F,
}

impl<M: MapReduce, F: Fn() -> M::Value> WordSink for Words<'_, '_, M, F> {
    #[inline]
    fn short(&mut self, word: Short) {
        self.emit.add(Key::Short(word), (self.value)());
    }

    fn long(&mut self, letters: &[u8]) {
        let emit = &mut *self.emit;
        emit.records += 1;
        let fill = |bytes: &mut [u8]| {
            for (byte, &letter) in bytes.iter_mut().zip(letters) {
                *byte = words::fold(letter);
            }
        };
        emit.table.add_long(letters.len(), fill, (self.value)(), |into, more| emit.job.combine(into, more));
    }
}
