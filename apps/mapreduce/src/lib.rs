//! MapReduce over LITE. Map tasks run on every processor of every node and combine equal keys at once. A
//! shuffle uses one-sided reads; every node reduces; rank 0 merges the nodes' sorted results.
//!
//! A job is an implementation of [`MapReduce`], and [`Job`] makes an application of it. The framework does
//! not interpret keys and values.
//!
//! # Neighbours
//! [`runtime`] starts the job on a node, [`lite`] moves the data, and `wordcount` and `grep` are jobs.
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
pub use runtime::{Arg, Args, Syntax};
pub use value::{Value, push_decimal};

use alloc::string::String;
use alloc::vec::Vec;
use proto::{CutRule, JobStart};

/// A job: the functions that turn input into keys and values, and those into output.
///
/// # Examples
///
/// A job that counts equal lines, the most frequent first:
///
/// ```
/// use mapreduce::{Args, Emitter, MapReduce, Split, push_decimal, run_local};
/// use proto::{CutRule, JobStart};
///
/// struct CountLines;
///
/// impl MapReduce for CountLines {
///     type Value = u64;
///     const NAME: &'static str = "count-lines";
///     const ABOUT: &'static str = "counts equal lines";
///
///     fn new(_: &JobStart, _: &Args<'_>) -> Result<Self, String> {
///         Ok(Self)
///     }
///
///     fn cut() -> CutRule {
///         CutRule::after(|byte| byte == b'\n')
///     }
///
///     fn map(&self, split: Split<'_>, emit: &mut Emitter<'_, Self>) {
///         for line in split.bytes.split_inclusive(|&byte| byte == b'\n') {
///             emit.add(line, 1);
///         }
///     }
///
///     fn combine(&self, into: &mut u64, more: u64) {
///         *into += more;
///     }
///
///     fn rank(&self, count: &u64) -> u64 {
///         u64::MAX - count
///     }
///
///     fn format(&self, line: &[u8], count: &u64, out: &mut Vec<u8>) {
///         push_decimal(*count, out);
///         out.push(b' ');
///         out.extend_from_slice(line);
///     }
/// }
///
/// // On a node, `mapreduce::Job::<CountLines>::default()` is the application.
/// let text = b"b\na\nb\n";
/// let output = run_local(&CountLines, &[Split { file: 0, offset: 0, bytes: text }]).unwrap();
/// assert_eq!(output, b"2 b\n1 a\n");
/// ```
pub trait MapReduce: Send + Sync + Sized + 'static {
    /// The type of a key's value.
    type Value: Value;

    /// The application's name.
    const NAME: &'static str;
    /// A description of one line.
    const ABOUT: &'static str;
    /// The arguments.
    const ARGS: &'static [Arg] = &[];
    /// The name, in the report, of the number of values that map functions added.
    const RECORDS: &'static str = "records";

    /// Returns the job for these arguments and inputs.
    ///
    /// # Errors
    ///
    /// A line for the user that says what is wrong with the arguments.
    fn new(start: &JobStart, args: &Args<'_>) -> Result<Self, String>;

    /// Returns the rule by which input may be cut.
    fn cut() -> CutRule;

    /// Adds the keys and values of a piece of input.
    fn map(&self, split: Split<'_>, emit: &mut Emitter<'_, Self>);

    /// Combines a second value of a key into the first. The order of the values must not matter.
    fn combine(&self, into: &mut Self::Value, more: Self::Value);

    /// Returns the sort key of the output: it is in ascending order of this number, and then of keys.
    fn rank(&self, _value: &Self::Value) -> u64 {
        0
    }

    /// Appends the output of one key.
    fn format(&self, key: &[u8], value: &Self::Value, out: &mut Vec<u8>);
}

/// The error of a failed allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: {wanted} bytes more were needed at once")]
pub struct OutOfMemory {
    /// The length of the allocation, in bytes.
    pub wanted: usize,
}
