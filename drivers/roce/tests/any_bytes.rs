//! No bytes, however wrong, make the parser panic; what parses emits to the same.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use common::{data, frames};
use proptest::prelude::*;
use roce::wire::{Frame, Packet};

/// What a receiver does with bytes.
fn receive(bytes: &[u8]) {
    if let Ok(frame) = Frame::parse(bytes) {
        let ok = frame.icrc_ok();
        let mut out = vec![0; bytes.len()];
        let len = frame.emit(&mut out).expect("a frame is not longer than what it was parsed from");
        let again = Frame::parse(&out[..len]).expect("what was emitted parses");
        assert!(again.icrc_ok());
        assert_eq!((again.headers, again.packet.ext), (frame.headers, frame.packet.ext));
        assert_eq!(again.packet.payload, frame.packet.payload);
        if ok && frame.packet.payload.len().is_multiple_of(4) && frame.packet.bth.pad == 0 {
            assert_eq!(out[..len], bytes[..len], "a good frame emits to itself");
        }
    }
    let _ = Packet::parse(bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        receive(&bytes);
    }

    #[test]
    fn captured_frames_with_wrong_bytes(
        pick in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut all = frames(&data().join("rc_mixed.pcap"));
        all.extend(frames(&data().join("rc_ipv6_mixed.pcap")));
        all.extend(frames(&data().join("ud_send.pcap")));
        let mut bytes = all.swap_remove(pick.index(all.len()));
        // Most changes would only fail a check of the outermost header: put them in the first 90 bytes.
        let head = bytes.len().min(90);
        for (at, value) in changes {
            bytes[at.index(head)] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        receive(&bytes);
    }
}
