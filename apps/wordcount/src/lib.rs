//! Word count: the number of occurrences of each word of a text, the most frequent word first.
//!
//! Words are maximal runs of ASCII letters, folded to lower case. The output is `word<TAB>count`, in
//! descending order of counts, then in ascending order of words.
//!
//! # Neighbours
//! [`mapreduce`] is the framework of this job, and `grep` is another job of it.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use alloc::string::String;
use alloc::vec::Vec;
use mapreduce::{Args, Emitter, MapReduce, Split};
use proto::{CutRule, JobStart};

/// The word count job. It accepts no arguments.
#[derive(Debug)]
pub struct WordCount;

impl MapReduce for WordCount {
    type Value = u64;

    const NAME: &'static str = "wordcount";
    const ABOUT: &'static str = "counts the words of a text";
    const RECORDS: &'static str = "words";

    fn new(_: &JobStart, _: &Args<'_>) -> Result<Self, String> {
        Ok(Self)
    }

    fn cut() -> CutRule {
        CutRule::after(|byte| !byte.is_ascii_alphabetic())
    }

    fn map(&self, split: Split<'_>, emit: &mut Emitter<'_, Self>) {
        emit.add_words(split.bytes, || 1);
    }

    fn combine(&self, count: &mut u64, more: u64) {
        *count += more;
    }

    fn rank(&self, count: &u64) -> u64 {
        u64::MAX - count
    }

    fn format(&self, word: &[u8], count: &u64, out: &mut Vec<u8>) {
        out.extend_from_slice(word);
        out.push(b'\t');
        mapreduce::push_decimal(*count, out);
        out.push(b'\n');
    }
}
