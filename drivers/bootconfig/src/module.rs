//! The contents of a module that a loader has passed.

use crate::cpio::Members;
use alloc::string::String;
use alloc::vec::Vec;

/// The names of the files that an appliance reads.
const CONFIG: &[u8] = b"ferrolite/config";
const KEY: &[u8] = b"ferrolite/key";
/// The greatest length of a file that consists of a key alone.
const LONGEST_KEY: usize = 128;

/// The contents of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents<'a> {
    /// The settings: lines `key=value`.
    pub config: Option<&'a [u8]>,
    /// The cluster key as text.
    pub key: Option<&'a [u8]>,
    /// The names of files that no appliance reads.
    pub unknown: Vec<String>,
    /// The number of bytes that are of no archive, and not zero.
    pub skipped: usize,
}

impl<'a> Contents<'a> {
    /// Reads a module: archives with the files `ferrolite/config` and `ferrolite/key`, of which the last ones
    /// count; or one of these files alone: a text with a `=` is the settings, and another short one the key.
    #[must_use]
    pub fn of(module: &'a [u8]) -> Self {
        let mut contents = Self::default();
        let mut members = Members::of(module);
        let mut is_archive = false;
        for member in members.by_ref() {
            is_archive = true;
            match member.name {
                CONFIG => contents.config = Some(member.data),
                KEY => contents.key = Some(member.data),
                name => contents.unknown.push(String::from_utf8_lossy(name).into_owned()),
            }
        }
        contents.skipped = members.skipped();
        // Loaders pad modules with zeros.
        let end = module.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let text = module.get(..end).unwrap_or_default().trim_ascii();
        if !is_archive && text.contains(&b'=') && core::str::from_utf8(text).is_ok() {
            contents.config = Some(text);
            contents.skipped = 0;
        } else if !is_archive && !text.is_empty() && text.len() <= LONGEST_KEY && text.is_ascii() {
            contents.key = Some(text);
            contents.skipped = 0;
        }
        contents
    }
}
