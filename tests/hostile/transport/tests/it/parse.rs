//! No bytes make the parser panic, and parsed frames emit to equal ones.

use proptest::prelude::*;
use std::path::Path;
use std::sync::LazyLock;

/// The frames of all [`CAPTURES`].
static FRAMES: LazyLock<[Vec<Vec<u8>>; 5]> = LazyLock::new(|| CAPTURES.map(frames));

/// Reads the frames of a capture.
fn frames(name: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../drivers/roce/tests/data").join(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (mut frames, mut rest) = (Vec::new(), &bytes[24..]);
    while let Some((header, after)) = rest.split_first_chunk::<16>() {
        let len = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        frames.push(after[..len].to_vec());
        rest = &after[len..];
    }
    frames
}

const CAPTURES: [&str; 5] =
    ["rc_mixed.pcap", "rc_ipv6_mixed.pcap", "ud_send.pcap", "rc_atomic.pcap", "rc_send_inv.pcap"];
const CASES: u32 = if cfg!(miri) { 8 } else { 1024 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        hostile_transport::parse(&bytes);
    }

    #[test]
    fn oversized(bytes in proptest::collection::vec(any::<u8>(), 0..50), len in 60_000usize..140_000) {
        let mut frame = FRAMES[0][0].clone();
        frame.splice(60.., bytes);
        frame.resize(if cfg!(miri) { len / 100 } else { len }, 0x5a);
        // The lengths in the headers are those of the capture, or the largest possible.
        hostile_transport::parse(&frame);
        frame[16..18].copy_from_slice(&[0xff; 2]);
        frame[38..40].copy_from_slice(&[0xff; 2]);
        hostile_transport::parse(&frame);
    }

    #[test]
    fn captured_frames_with_wrong_bytes(
        capture in 0..CAPTURES.len(),
        pick in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = pick.get(&FRAMES[capture]).clone();
        // Most changes would only fail a check of the outermost header, so they are put into the first 90
        // bytes.
        let head = bytes.len().min(90);
        for (at, value) in changes {
            bytes[at.index(head)] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        hostile_transport::parse(&bytes);
    }
}

#[test]
fn every_truncation_and_every_flipped_bit_of_a_frame() {
    // The interpreter runs only the smallest capture and few changes.
    for frames in FRAMES.iter().skip(if cfg!(miri) { 4 } else { 0 }) {
        for bytes in frames.iter().take(if cfg!(miri) { 1 } else { 8 }) {
            for len in (0..bytes.len()).step_by(if cfg!(miri) { 10 } else { 1 }) {
                hostile_transport::parse(&bytes[..len]);
            }
            for bit in (0..bytes.len() * 8).take(800).step_by(if cfg!(miri) { 37 } else { 1 }) {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                hostile_transport::parse(&bad);
            }
        }
    }
}

/// libFuzzer found this: a GRH that claims 27 bytes, so that the data behind the headers does not consist of
/// whole words.
#[test]
fn a_payload_that_is_not_whole_words_is_malformed() {
    let mut frame = vec![0; 12];
    frame.extend([0x89, 0x15, 0x62, 0, 0, 0, 0, 27]);
    frame.extend([0x1b; 62]);
    // SEND ONLY of a reliable connection, without padding.
    frame[54..56].copy_from_slice(&[0x04, 0]);
    hostile_transport::parse(&frame);
    assert!(roce::wire::Frame::parse(&frame).is_err());
    // With one byte more, the frame is valid.
    frame[19] = 28;
    assert!(roce::wire::Frame::parse(&frame).is_ok());
    hostile_transport::parse(&frame);
}
