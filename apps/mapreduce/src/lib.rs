//! MapReduce over LITE: map tasks on every processor of every node, combining as they go; a shuffle through one-sided
//! reads; reduction on every node; and a merge of the nodes' sorted results on rank 0.
//!
//! A job is an implementation of [`MapReduce`], and [`Job`] makes an application of it. The framework knows nothing of
//! what keys and values mean.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod arena;
mod emit;
mod job;
mod key;
mod local;
mod map;
mod merge;
mod reduce;
mod region;
mod run;
mod seed;
mod sort;
mod table;
#[cfg(test)]
mod tests;
mod value;
mod words;

pub use emit::{Emitter, Split};
pub use job::Job;
pub use key::{Key, SHORT, Short};
pub use local::run as run_local;
pub use value::{Value, push_decimal};

use alloc::string::String;
use alloc::vec::Vec;
use proto::{CutRule, JobStart};

/// A job: how input becomes keys and values, and those become output.
pub trait MapReduce: Send + Sync + Sized + 'static {
    /// What a key has.
    type Value: Value;

    /// The application's name.
    const NAME: &'static str;
    /// One line about it.
    const ABOUT: &'static str;
    /// What the report calls the number of values that map functions added.
    const RECORDS: &'static str = "records";

    /// The job for these arguments and inputs, or what is wrong with them.
    fn new(start: &JobStart) -> Result<Self, String>;

    /// Where input may be cut.
    fn cut() -> CutRule;

    /// Adds the keys and values of a piece of input.
    fn map(&self, split: Split<'_>, emit: &mut Emitter<'_, Self>);

    /// Makes one value of two of the same key, in any order.
    fn combine(&self, into: &mut Self::Value, more: Self::Value);

    /// The output is in ascending order of this number, and of keys where it is equal.
    fn rank(&self, _value: &Self::Value) -> u64 {
        0
    }

    /// Appends the output of one key.
    fn format(&self, key: &[u8], value: &Self::Value, out: &mut Vec<u8>);
}

/// Memory has run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: {wanted} bytes more were needed at once")]
pub struct OutOfMemory {
    /// Bytes of the allocation that failed.
    pub wanted: usize,
}
