//! The reader of captures.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};

/// Returns the directory of the captures.
pub(crate) fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// Returns the names of all captures, in order.
pub(crate) fn captures() -> Vec<String> {
    let paths = std::fs::read_dir(data()).unwrap().map(|entry| entry.unwrap().path());
    let captures = paths.filter(|path| path.extension().is_some_and(|e| e == "pcap"));
    let mut names: Vec<_> =
        captures.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// Returns the frames of a capture in the classic little-endian pcap format.
pub(crate) fn frames(path: &Path) -> Vec<Vec<u8>> {
    timed_frames(path).into_iter().map(|(_, frame)| frame).collect()
}

/// Returns the frames, each with the nanoseconds since the first.
pub(crate) fn timed_frames(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let bytes = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let unit = match word(0) {
        0xa1b2_c3d4 => 1_000,
        0xa1b2_3c4d => 1,
        _ => panic!("{path:?} is not a capture"),
    };
    let (mut frames, mut start) = (Vec::new(), None);
    let mut at = 24;
    while at < bytes.len() {
        let time = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)) * unit;
        let (captured, len) = (word(at + 8) as usize, word(at + 12) as usize);
        assert_eq!(captured, len, "{path:?} has a cut frame");
        at += 16;
        frames.push((time - *start.get_or_insert(time), bytes[at..at + len].to_vec()));
        at += len;
    }
    frames
}
