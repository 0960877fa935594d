//! A writer of `newc` cpio archives, the format of an initramfs (Linux,
//! Documentation/driver-api/early-userspace/buffer-format.rst).

use anyhow::{Result, ensure};
use std::collections::BTreeSet;
use std::io::Write;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_777;
/// The alignment of an archive's end in bytes. The kernel looks for the next archive at a multiple of 4 and
/// skips zeros; whole sectors are customary.
const BLOCK: usize = 512;

/// An archive being written. All entries belong to root and have the time 0.
#[derive(Debug)]
pub(super) struct Cpio<W> {
    to: W,
    written: usize,
    inodes: u32,
    directories: BTreeSet<String>,
}

impl<W: Write> Cpio<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, written: 0, inodes: 0, directories: BTreeSet::new() }
    }

    /// Adds a directory and its parents, unless they exist.
    pub(super) fn directory(&mut self, path: &str) -> Result<()> {
        let path = path.trim_matches('/');
        if path.is_empty() || self.directories.contains(path) {
            return Ok(());
        }
        self.parent(path)?;
        self.directories.insert(path.to_owned());
        self.entry(path, DIRECTORY, &[])
    }

    /// Adds a file with its permissions (`0o755`), and its parent directories.
    pub(super) fn file(&mut self, path: &str, permissions: u32, content: &[u8]) -> Result<()> {
        let path = path.trim_matches('/');
        self.parent(path)?;
        self.entry(path, FILE | permissions & 0o777, content)
    }

    /// Adds a symbolic link and its parent directories.
    pub(super) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        let path = path.trim_matches('/');
        self.parent(path)?;
        self.entry(path, LINK, target.as_bytes())
    }

    /// Ends the archive. Another archive may follow in the same output.
    pub(super) fn finish(mut self) -> Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.pad(BLOCK)?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn parent(&mut self, path: &str) -> Result<()> {
        path.rsplit_once('/').map_or(Ok(()), |(parent, _)| self.directory(parent))
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        let size = u32::try_from(content.len()).ok();
        ensure!(size.is_some(), "{path} has 4 GiB or more, which an initramfs cannot contain");
        let size = size.unwrap_or_default();
        self.inodes += 1;
        let name_size = u32::try_from(path.len() + 1)?;
        // Inode, mode, user, group, links, time, size, device (2), special device (2), name's size, checksum.
        let fields = [self.inodes, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        let header: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        self.put(b"070701")?;
        self.put(header.as_bytes())?;
        self.put(path.as_bytes())?;
        self.put(&[0])?;
        self.pad(4)?;
        self.put(content)?;
        self.pad(4)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.to.write_all(bytes)?;
        self.written += bytes.len();
        Ok(())
    }

    fn pad(&mut self, to: usize) -> Result<()> {
        let missing = self.written.next_multiple_of(to) - self.written;
        self.put(&[0; BLOCK][..missing])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let mut cpio = Cpio::new(Vec::new());
        cpio.file("/a/b", 0o755, b"hello").unwrap();
        cpio.directory("a").unwrap();
        cpio.link("a/l", "b").unwrap();
        let bytes = cpio.finish().unwrap();
        let entry = |fields: &str, name: &str, content: &str| {
            let mut entry = format!("070701{fields}{name}\0");
            entry.extend(std::iter::repeat_n('\0', entry.len().next_multiple_of(4) - entry.len()));
            entry.push_str(content);
            entry.extend(std::iter::repeat_n('\0', entry.len().next_multiple_of(4) - entry.len()));
            entry
        };
        let fields = |inode: u32, mode: u32, size: u32, name: u32| {
            let zero = "00000000";
            format!(
                "{inode:08x}{mode:08x}{zero}{zero}00000001{zero}{size:08x}{zero}{zero}{zero}{zero}{name:08x}{zero}"
            )
        };
        let mut expected = entry(&fields(1, 0o040_755, 0, 2), "a", "");
        expected += &entry(&fields(2, 0o100_755, 5, 4), "a/b", "hello");
        expected += &entry(&fields(3, 0o120_777, 1, 4), "a/l", "b");
        expected += &entry(&fields(4, 0, 0, 11), "TRAILER!!!", "");
        expected.extend(std::iter::repeat_n('\0', 512 - expected.len()));
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }
}
