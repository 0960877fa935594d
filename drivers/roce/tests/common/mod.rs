//! Reads the captures.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::path::{Path, PathBuf};

/// The directory of the captures.
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// The frames of a capture in the classic little-endian pcap format.
pub fn frames(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert!([0xa1b2_c3d4, 0xa1b2_3c4d].contains(&word(0)), "{path:?} is not a capture");
    let mut frames = Vec::new();
    let mut at = 24;
    while at < bytes.len() {
        let (captured, len) = (word(at + 8) as usize, word(at + 12) as usize);
        assert_eq!(captured, len, "{path:?} has a cut frame");
        at += 16;
        frames.push(bytes[at..at + len].to_vec());
        at += len;
    }
    frames
}
