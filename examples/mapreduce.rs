//! A MapReduce job: the number of words of each length in a text, counted by three nodes.
//!
//! A job is a type that implements the trait `MapReduce`. The manager cuts the input and sends the pieces to
//! the nodes. Each node calls `map` on its pieces, reads its share of the other nodes' results by one-sided
//! READs, and combines them. The first node sends the sorted output to the client.
//!
//! ```text
//! cargo run -q -p examples --example mapreduce
//! ```

use anyhow::Result;
use examples::LocalCluster;
use manager::client::{Inputs, Job, Output};
use mapreduce::{Args, Emitter, MapReduce, Split, push_decimal};
use proto::{CutRule, JobStart};

const TEXT: &str =
    "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals.";

/// The job. It has no arguments, so its type has no fields.
struct WordLengths;

impl MapReduce for WordLengths {
    /// The number of words.
    type Value = u64;
    const NAME: &'static str = "word-lengths";
    const ABOUT: &'static str = "counts words by length";

    fn new(_: &JobStart, _: &Args<'_>) -> Result<Self, String> {
        Ok(Self)
    }

    /// The input may be cut after any byte that is not a letter, so no word is divided.
    fn cut() -> CutRule {
        CutRule::after(|byte| !byte.is_ascii_alphabetic())
    }

    /// Adds 1 to the key of each word's length. The key is one byte here; it may be any bytes.
    fn map(&self, split: Split<'_>, emit: &mut Emitter<'_, Self>) {
        for word in split.bytes.split(|byte| !byte.is_ascii_alphabetic()).filter(|word| !word.is_empty()) {
            let length = u8::try_from(word.len()).unwrap_or(u8::MAX);
            emit.add(&[length][..], 1);
        }
    }

    /// Combines two values of one key, on any node and in any order.
    fn combine(&self, count: &mut u64, more: u64) {
        *count += more;
    }

    /// Appends one line of output. The framework calls this in the order of the keys.
    fn format(&self, key: &[u8], count: &u64, out: &mut Vec<u8>) {
        let length = key.first().copied().unwrap_or_default();
        push_decimal(length.into(), out);
        out.extend_from_slice(b" letters: ");
        push_decimal(*count, out);
        out.push(b'\n');
    }
}

fn main() -> Result<()> {
    let cluster = LocalCluster::with_apps(3, || vec![Box::new(mapreduce::Job::<WordLengths>::default())])?;
    let input = cluster.file("text", TEXT.as_bytes())?;
    let result = input.with_file_name("result");
    // On a command line: `ferrolite job submit --app word-lengths --input text --output result`.
    let job = Job {
        app: WordLengths::NAME.into(),
        args: Vec::new(),
        nodes: 0,
        on: Vec::new(),
        limit: None,
        ..Job::default()
    };
    let mut output = Output::create(&result)?;
    let done = cluster.client()?.submit(&job, Inputs::open(&[input])?, &mut output, &|_| {})?;
    output.finish()?;
    print!("{}", std::fs::read_to_string(&result)?);
    println!("{} nodes took part", done.reports.len());
    Ok(())
}
