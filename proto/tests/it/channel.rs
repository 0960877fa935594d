//! The Noise channel: golden bytes, properties over any segmentation, and every way to fail.
use proptest::prelude::*;
use proto::channel::{
    Arithmetic, Channel, ChannelError, ClusterKey, FRAME_OVERHEAD, FRAME_PAYLOAD, Handshake, HandshakeStep,
    MAX_MESSAGE, Opener, sealed_len,
};

const KEY: ClusterKey = ClusterKey::from_bytes([7; 32]);

/// Feeds `bytes` in pieces of `step` bytes; gives how the handshake ended.
fn feed(mut side: Handshake, bytes: &[u8], step: usize) -> Result<(Vec<u8>, Channel), ChannelError> {
    for mut piece in bytes.chunks(step) {
        match side.feed(&mut piece)? {
            HandshakeStep::Continue(next) => side = next,
            HandshakeStep::Done { reply, channel } => return Ok((reply, channel)),
        }
    }
    panic!("the handshake wants more");
}

fn pair(step: usize) -> (Channel, Channel) {
    let (initiator, first) = Handshake::initiator(&KEY, [1; 32]);
    let (reply, responder) = feed(Handshake::responder(&KEY, [2; 32]), &first, step).expect("the same key");
    let (nothing, initiator) = feed(initiator, &reply, step).expect("the same key");
    assert!(nothing.is_empty());
    (initiator, responder)
}

/// All messages in `bytes`, fed in pieces of `step`.
fn open_all(opener: &mut Opener, bytes: &[u8], step: usize) -> Result<Vec<Vec<u8>>, ChannelError> {
    let mut messages = Vec::new();
    for mut piece in bytes.chunks(step) {
        while let Some(message) = opener.open(&mut piece)? {
            messages.push(message);
        }
        assert!(piece.is_empty());
    }
    Ok(messages)
}

/// As [`pair`], the initiator computing as told.
fn pair_with(arithmetic: Arithmetic) -> (Channel, Channel) {
    let (initiator, first) = Handshake::initiator_with(&KEY, [1; 32], arithmetic);
    let (reply, responder) = feed(Handshake::responder(&KEY, [2; 32]), &first, 99).expect("the same key");
    let (_, initiator) = feed(initiator, &reply, 99).expect("the same key");
    (initiator, responder)
}

#[test]
fn both_arithmetics_give_the_same_bytes() {
    let (mut vectors, mut peer) = pair_with(Arithmetic::Vectors);
    let (mut scalars, mut other) = pair_with(Arithmetic::Scalars);
    for len in [0, 1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, FRAME_PAYLOAD - 1, FRAME_PAYLOAD, 50_000] {
        let message: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
        let seal = |channel: &mut Channel| {
            let mut sealed = Vec::new();
            channel.sealer.seal(&message, &mut sealed).unwrap();
            sealed
        };
        let sealed = seal(&mut scalars);
        assert_eq!(sealed, seal(&mut vectors), "{len}");
        assert_eq!(other.opener.open(&mut &sealed[..]).unwrap().as_deref(), Some(&message[..]));
        // And what the peer seals opens with both.
        let sealed = seal(&mut peer);
        assert_eq!(sealed, seal(&mut other));
        for channel in [&mut vectors, &mut scalars] {
            assert_eq!(channel.opener.open(&mut &sealed[..]).unwrap().as_deref(), Some(&message[..]));
        }
    }
}

#[test]
fn scalars_refuse_each_changed_bit() {
    for bit in 0..8 * (4 + FRAME_OVERHEAD) {
        let (mut scalars, mut peer) = pair_with(Arithmetic::Scalars);
        let mut sealed = Vec::new();
        peer.sealer.seal(b"text", &mut sealed).unwrap();
        sealed[bit / 8] ^= 1 << (bit % 8);
        // A longer length makes the frame wait for more; all else is damage.
        let opened = scalars.opener.open(&mut &sealed[..]);
        assert!(matches!(opened, Err(ChannelError::Damaged) | Ok(None)), "bit {bit}: {opened:?}");
        assert!(bit < 16 || opened.is_err(), "bit {bit}");
    }
}

#[test]
fn golden_bytes() {
    // Any change of pattern, primitives, prologue or framing shows here, and breaks nodes of another build.
    let (initiator, first) = Handshake::initiator(&KEY, [1; 32]);
    let (reply, mut responder) = feed(Handshake::responder(&KEY, [2; 32]), &first, 99).unwrap();
    let (_, mut initiator) = feed(initiator, &reply, 99).unwrap();
    let mut sealed = Vec::new();
    initiator.sealer.seal(b"heartbeat", &mut sealed).unwrap();
    responder.sealer.seal(b"", &mut sealed).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    assert_eq!(hex(&first), include_str!("golden/first.hex").trim());
    assert_eq!(hex(&reply), include_str!("golden/reply.hex").trim());
    assert_eq!(hex(&sealed), include_str!("golden/sealed.hex").trim());
}

#[test]
fn full_frames_and_borders() {
    let (mut a, mut b) = pair(1);
    for len in [0, 1, FRAME_PAYLOAD - 1, FRAME_PAYLOAD, FRAME_PAYLOAD + 1, 3 * FRAME_PAYLOAD, MAX_MESSAGE] {
        let message: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let mut sealed = Vec::new();
        a.sealer.seal(&message, &mut sealed).unwrap();
        assert_eq!(sealed.len(), sealed_len(len));
        assert_eq!(open_all(&mut b.opener, &sealed, 1461).unwrap(), [message]);
    }
}

#[test]
fn sealing_into_a_buffer_is_the_same() {
    let (mut a, _) = pair(50);
    let (mut same, _) = pair(50);
    let mut buffer = [0; 64];
    let mut vec = Vec::new();
    for _ in 0..3 {
        let len = a.sealer.seal_into(b"beat", &mut buffer).unwrap();
        same.sealer.seal(b"beat", &mut vec).unwrap();
        assert_eq!(buffer[..len], vec[vec.len() - len..]);
        assert_eq!(len, 4 + FRAME_OVERHEAD);
    }
    assert_eq!(a.sealer.seal_into(&[0; 60], &mut buffer), Err(ChannelError::NoRoom));
}

#[test]
fn wrong_key_is_told_to_both() {
    let other = ClusterKey::from_bytes([8; 32]);
    let (initiator, first) = Handshake::initiator(&other, [1; 32]);
    let refused = feed(Handshake::responder(&KEY, [2; 32]), &first, 7).unwrap_err();
    assert_eq!(refused, ChannelError::WrongKey);
    assert_eq!(feed(initiator, &Handshake::REFUSAL, 1).unwrap_err(), ChannelError::WrongKey);

    // A responder that pretends to have the key is found out by the initiator.
    let (initiator, _) = Handshake::initiator(&KEY, [1; 32]);
    let mut forged = vec![0, 48];
    forged.extend([9; 48]);
    assert_eq!(feed(initiator, &forged, 50).unwrap_err(), ChannelError::WrongKey);
}

#[test]
fn another_protocol_is_recognised() {
    for speech in [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-x\r\n", &[0, 0, 0, 0]] {
        let got = feed(Handshake::responder(&KEY, [2; 32]), speech, 3).unwrap_err();
        assert_eq!(got, ChannelError::NotFerrolite);
    }
}

#[test]
fn too_long_is_refused_on_both_sides() {
    let (mut a, mut b) = pair(9);
    let mut sealed = Vec::new();
    let long = vec![0; MAX_MESSAGE + 1];
    assert_eq!(a.sealer.seal(&long, &mut sealed), Err(ChannelError::TooLong { max: MAX_MESSAGE }));
    assert!(sealed.is_empty());
    b.opener.limit(100);
    a.sealer.seal(&[1; 100], &mut sealed).unwrap();
    a.sealer.seal(&[1; 101], &mut sealed).unwrap();
    assert_eq!(open_all(&mut b.opener, &sealed, 40), Err(ChannelError::TooLong { max: 100 }));
}

#[test]
fn replayed_swapped_and_reflected_frames_are_damage() {
    let (mut a, mut b) = pair(9);
    let (mut one, mut two) = (Vec::new(), Vec::new());
    a.sealer.seal(b"one", &mut one).unwrap();
    a.sealer.seal(b"two", &mut two).unwrap();
    assert_eq!(a.opener.open(&mut &one[..]), Err(ChannelError::Damaged), "reflected");
    assert_eq!(b.opener.open(&mut &one[..]).unwrap().unwrap(), b"one");
    assert_eq!(b.opener.open(&mut &one[..]), Err(ChannelError::Damaged), "replayed");
    assert_eq!(b.opener.open(&mut &two[..]), Err(ChannelError::Damaged), "nothing goes on after damage");
    let (_, mut b) = pair(9);
    assert_eq!(b.opener.open(&mut &two[..]), Err(ChannelError::Damaged), "out of order");
}

#[test]
fn key_text() {
    let text = KEY.to_hex();
    assert_eq!(text.len(), 65);
    assert_eq!(ClusterKey::from_hex(text.as_bytes()).unwrap(), KEY);
    assert_eq!(ClusterKey::from_hex(text.to_uppercase().trim().as_bytes()).unwrap(), KEY);
    for bad in ["", "07", &text[1..], &text.replace('7', "g"), &format!("{}7", text.trim())] {
        assert!(ClusterKey::from_hex(bad.as_bytes()).is_err(), "{bad}");
    }
    assert_eq!(format!("{KEY:?}"), "ClusterKey(..)");
}

proptest! {
    #[test]
    fn messages_come_whole_in_any_segmentation(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40_000), 1..5),
        step in 1usize..50_000,
    ) {
        let (mut a, mut b) = pair(step);
        let mut sealed = Vec::new();
        for message in &messages {
            a.sealer.seal(message, &mut sealed).unwrap();
        }
        prop_assert_eq!(open_all(&mut b.opener, &sealed, step).unwrap(), messages);
    }

    #[test]
    fn any_changed_byte_is_noticed(at in 0usize..10_000, flip in 1u8..=255, step in 1usize..3000) {
        let (mut a, mut b) = pair(5);
        let mut sealed = Vec::new();
        a.sealer.seal(&[3; 2000], &mut sealed).unwrap();
        a.sealer.seal(&[4; 2000], &mut sealed).unwrap();
        let at = at % sealed.len();
        sealed[at] ^= flip;
        // A longer length may leave the opener waiting for the rest: then it must not have given a changed message.
        match open_all(&mut b.opener, &sealed, step) {
            Err(error) => prop_assert_eq!(error, ChannelError::Damaged),
            Ok(messages) => {
                prop_assert!(messages.len() < 2);
                prop_assert!(messages.iter().all(|m| m == &[3; 2000]));
            }
        }
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (_, mut b) = pair(5);
        let _ = b.opener.open(&mut &bytes[..]);
        let (initiator, _) = Handshake::initiator(&KEY, [1; 32]);
        let _ = initiator.feed(&mut &bytes[..]);
        let _ = Handshake::responder(&KEY, [2; 32]).feed(&mut &bytes[..]);
    }
}
