//! The parser on any bytes.

use roce::wire::{Frame, Packet};

/// Parses bytes as a receiver does. A parsed frame must emit to a frame that parses to an equal one, with a
/// valid ICRC.
///
/// # Panics
/// Panics if that does not hold.
pub fn parse(bytes: &[u8]) {
    if let Ok(frame) = Frame::parse(bytes) {
        let good = frame.icrc_ok();
        let mut out = vec![0; bytes.len()];
        let len = frame.emit(&mut out).expect("a frame is not longer than what it was parsed from");
        let again = Frame::parse(&out[..len]).expect("an emitted frame parses");
        assert!(again.icrc_ok(), "the emitted ICRC is good");
        assert_eq!((again.headers, again.packet.ext), (frame.headers, frame.packet.ext));
        assert_eq!(again.packet.payload, frame.packet.payload);
        if good && frame.packet.payload.len().is_multiple_of(4) && frame.packet.bth.pad == 0 {
            assert_eq!(out[..len], bytes[..len], "a good frame emits to itself");
        }
        assert_eq!(frame.emit(&mut vec![0; len - 1]), None, "no room is no frame");
    }
    if let Ok(packet) = Packet::parse(bytes) {
        assert!(packet.payload.len() <= bytes.len());
    }
}
