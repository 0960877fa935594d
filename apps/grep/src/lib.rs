//! Distributed grep: the lines that contain a string of bytes, as `grep -abHF` prints them.
//!
//! The arguments are `[-i] PATTERN`; `-i` ignores the case of ASCII letters. The output is `file:offset:line`
//! in the order of the input. The offset is that of the line in its file, in bytes.
//!
//! # Neighbours
//! [`mapreduce`] is the framework of this job, and `wordcount` is another job of it.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use mapreduce::{Arg, Args, Emitter, MapReduce, Split, push_decimal};
use memchr::memchr;
use memchr::memmem::Finder;
use proto::{CutRule, JobStart};

/// The grep job.
#[derive(Debug)]
pub struct Grep {
    ignore_case: bool,
    pattern: Finder<'static>,
    files: Vec<String>,
}

impl MapReduce for Grep {
    /// The line. Its key is the file's number and the line's offset, both big-endian, so that keys sort in
    /// the order of the input.
    type Value = Vec<u8>;

    const NAME: &'static str = "grep";
    const ABOUT: &'static str = "finds the lines that contain a string";
    const ARGS: &'static [Arg] = &[Arg::switch("-i"), Arg::word("PATTERN")];
    const RECORDS: &'static str = "lines";

    fn new(start: &JobStart, args: &Args<'_>) -> Result<Self, String> {
        let (ignore_case, pattern) = (args.has("-i"), args.text("PATTERN").unwrap_or_default());
        let pattern = if ignore_case { pattern.to_ascii_lowercase() } else { pattern.to_string() };
        if pattern.contains('\n') {
            return Err("the pattern of grep must not contain a line feed".to_string());
        }
        let pattern = Finder::new(pattern.as_bytes()).into_owned();
        Ok(Self { ignore_case, pattern, files: start.inputs.iter().map(|file| file.name.clone()).collect() })
    }

    fn cut() -> CutRule {
        CutRule::after(|byte| byte == b'\n')
    }

    fn map(&self, split: Split<'_>, emit: &mut Emitter<'_, Self>) {
        let folded = if self.ignore_case { split.bytes.to_ascii_lowercase() } else { Vec::new() };
        let searched = if self.ignore_case { &folded } else { split.bytes };
        let mut from = 0;
        while let Some(found) =
            searched.get(from..).filter(|r| !r.is_empty()).and_then(|r| self.pattern.find(r))
        {
            let (before, after) = split.bytes.split_at(from + found);
            let start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |feed| feed + 1);
            let end = memchr(b'\n', after).map_or(split.bytes.len(), |feed| before.len() + feed);
            let mut key = [0; 12];
            key[..4].copy_from_slice(&split.file.to_be_bytes());
            key[4..].copy_from_slice(&(split.offset + start as u64).to_be_bytes());
            emit.add(&key[..], split.bytes[start..end].to_vec());
            from = end + 1;
        }
    }

    fn combine(&self, _: &mut Vec<u8>, _: Vec<u8>) {
        // Keys are distinct: no two lines begin at the same offset of a file.
    }

    fn format(&self, key: &[u8], line: &Vec<u8>, out: &mut Vec<u8>) {
        let Some((file, offset)) = key.split_first_chunk() else { return };
        let name = self.files.get(u32::from_be_bytes(*file) as usize).map_or("", String::as_str);
        out.extend_from_slice(name.as_bytes());
        out.push(b':');
        push_decimal(offset.first_chunk().map_or(0, |offset| u64::from_be_bytes(*offset)), out);
        out.push(b':');
        out.extend_from_slice(line);
        out.push(b'\n');
    }
}
