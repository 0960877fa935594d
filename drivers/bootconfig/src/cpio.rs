//! Archives of the form newc (Linux's Documentation/driver-api/early-userspace/buffer-format.rst), as loaders
//! pass them: several behind each other, padded with zeros, or with other data between them.

use alloc::format;
use alloc::vec::Vec;

/// The first bytes of a member: newc, without and with checksums.
const MAGIC: [&[u8]; 2] = [WRITTEN, b"070702"];
/// The first bytes of a member that this crate writes.
const WRITTEN: &[u8] = b"070701";
/// The length of a member's header: the magic and 13 numbers of 8 hexadecimal digits.
const HEADER: usize = 110;
/// The alignment of headers and data in an archive.
const ALIGN: usize = 4;
/// The name of the member that ends an archive.
const LAST: &str = "TRAILER!!!";

/// The type and permissions of a file that only its owner reads.
const PRIVATE_FILE: u32 = 0o100_600;

/// Returns an archive of files, each with its name and contents. Its bytes depend on nothing else.
#[must_use]
pub fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, data) in files {
        push(&mut bytes, name, PRIVATE_FILE, data);
    }
    push(&mut bytes, LAST, 0, &[]);
    bytes
}

/// Adds a member with one link and no owner, device or time.
fn push(bytes: &mut Vec<u8>, name: &str, mode: u32, data: &[u8]) {
    let fields = [0, mode as usize, 0, 0, 1, 0, data.len(), 0, 0, 0, 0, name.len() + 1, 0];
    bytes.extend_from_slice(WRITTEN);
    for field in fields {
        bytes.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    bytes.extend_from_slice(name.as_bytes());
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
}

/// A file of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// The name, without leading `./` and `/`.
    pub name: &'a [u8],
    /// The contents.
    pub data: &'a [u8],
}

/// The files of all archives in some bytes. Directories and bytes of no archive are left out.
#[derive(Clone, Debug)]
pub struct Members<'a> {
    bytes: &'a [u8],
    at: usize,
    skipped: usize,
}

impl<'a> Members<'a> {
    /// Returns the files in `bytes`, which begin with an archive or with padding.
    #[must_use]
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, skipped: 0 }
    }

    /// Returns the number of bytes so far that are neither of an archive nor zero.
    #[must_use]
    pub const fn skipped(&self) -> usize {
        self.skipped
    }

    /// Returns the number of a header that starts at `at`.
    fn field(&self, at: usize, index: usize) -> Option<usize> {
        let digits = self.bytes.get(at + 6 + 8 * index..at + 14 + 8 * index)?;
        digits.iter().try_fold(0, |number, digit| {
            let digit = char::from(*digit).to_digit(16)?;
            Some(number << 4 | digit as usize)
        })
    }

    /// Returns the member whose header starts at `at`, and the end of its data.
    fn member(&self, at: usize) -> Option<(Member<'a>, usize)> {
        let magic = self.bytes.get(at..at + 6)?;
        if !MAGIC.contains(&magic) {
            return None;
        }
        let (data_len, name_len) = (self.field(at, 6)?, self.field(at, 11)?);
        let name_at = at + HEADER;
        // The name ends with a zero, which counts.
        let name = self.bytes.get(name_at..name_at.checked_add(name_len)?)?.strip_suffix(b"\0")?;
        let data_at = (name_at + name_len).next_multiple_of(ALIGN);
        let end = data_at.checked_add(data_len)?;
        let data = self.bytes.get(data_at..end)?;
        let name = name.strip_prefix(b"./").or_else(|| name.strip_prefix(b"/")).unwrap_or(name);
        Some((Member { name, data }, end))
    }

    /// Returns true if the header at `at` is of a file, rather than of a directory or a device.
    fn is_file(&self, at: usize) -> bool {
        // The type is in the upper bits of the mode; 0 is accepted for writers that set none.
        matches!(self.field(at, 1).map(|mode| mode & 0o170_000), Some(0 | 0o100_000))
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        while self.at < self.bytes.len() {
            let at = self.at;
            let Some((member, end)) = self.member(at) else {
                let rest = self.bytes.get(at..).unwrap_or_default();
                let step = rest.get(..ALIGN).unwrap_or(rest);
                self.skipped += step.iter().filter(|byte| **byte != 0).count();
                self.at += step.len();
                continue;
            };
            self.at = end.next_multiple_of(ALIGN);
            if member.name != LAST.as_bytes() && self.is_file(at) {
                return Some(member);
            }
        }
        None
    }
}
