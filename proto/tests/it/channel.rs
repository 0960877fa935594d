//! The Noise channel: golden bytes, properties over any segmentation, and all failures.
use proptest::prelude::*;
use proto::channel::{
    Arithmetic, Channel, ChannelError, ClusterKey, FRAME_OVERHEAD, FRAME_PAYLOAD, Handshake, HandshakeStep,
    MAX_MESSAGE, Opener, Role, RoleKey, WrongRole, sealed_len,
};

pub(crate) const KEY: ClusterKey = ClusterKey::from_bytes([7; 32]);

fn role_key(role: Role) -> RoleKey {
    KEY.for_role(role).unwrap()
}

fn initiator() -> Handshake {
    Handshake::initiator(&role_key(Role::Node), [1; 32])
}

pub(crate) fn responder() -> (Handshake, Vec<u8>) {
    Handshake::responder(&KEY.roles().unwrap(), [[3; 32], [2; 32]])
}

/// Feeds `bytes` in pieces of `step` bytes, all of which the handshake must consume, and returns the last
/// result.
fn step(mut side: Handshake, bytes: &[u8], step: usize) -> Result<HandshakeStep, ChannelError> {
    let mut replies = Vec::new();
    for mut piece in bytes.chunks(step) {
        match side.feed(&mut piece)? {
            HandshakeStep::Continue { reply, next } => {
                replies.extend(reply);
                side = next;
            }
            done @ HandshakeStep::Done { .. } => {
                assert!(piece.is_empty() && replies.is_empty());
                return Ok(done);
            }
        }
    }
    Ok(HandshakeStep::Continue { reply: replies, next: side })
}

/// Feeds bytes after which the handshake must wait, and returns it and its reply.
pub(crate) fn go_on(side: Handshake, bytes: &[u8], pieces: usize) -> (Handshake, Vec<u8>) {
    match step(side, bytes, pieces) {
        Ok(HandshakeStep::Continue { reply, next }) => (next, reply),
        other => panic!("{other:?}"),
    }
}

/// Feeds the last bytes of a handshake, and returns its result.
pub(crate) fn end(side: Handshake, bytes: &[u8], pieces: usize) -> Result<(Vec<u8>, Channel), ChannelError> {
    match step(side, bytes, pieces)? {
        HandshakeStep::Done { reply, channel } => Ok((reply, channel)),
        HandshakeStep::Continue { .. } => panic!("the handshake wants more"),
    }
}

fn shake(initiator: Handshake, pieces: usize) -> (Channel, Channel) {
    let (responder, challenge) = responder();
    let (initiator, first) = go_on(initiator, &challenge, pieces);
    let (reply, responder) = end(responder, &first, pieces).expect("the same key");
    let (nothing, initiator) = end(initiator, &reply, pieces).expect("the same key");
    assert!(nothing.is_empty());
    assert_eq!(initiator.role, responder.role);
    (initiator, responder)
}

fn pair(pieces: usize) -> (Channel, Channel) {
    shake(initiator(), pieces)
}

/// Returns all messages in `bytes`, fed in pieces of `step` bytes.
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

/// Makes a pair as [`pair`], with the given implementation at the initiator.
fn pair_with(arithmetic: Arithmetic) -> (Channel, Channel) {
    shake(Handshake::initiator_with(&role_key(Role::Node), [1; 32], arithmetic), 99)
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
        // Both implementations open a message that the peer seals.
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
        // After a change to a longer length the opener waits for more bytes; every other change is damage.
        let opened = scalars.opener.open(&mut &sealed[..]);
        assert!(matches!(opened, Err(ChannelError::Damaged) | Ok(None)), "bit {bit}: {opened:?}");
        assert!(bit < 16 || opened.is_err(), "bit {bit}");
    }
}

#[test]
fn golden_bytes() {
    // Any change of pattern, primitives, prologue or framing changes these bytes, and breaks nodes of another
    // build. The bytes come from another implementation of Noise, in Python with its `cryptography` and
    // `hashlib`.
    let (responder, challenge) = responder();
    let (initiator, first) = go_on(initiator(), &challenge, 99);
    let (reply, mut responder) = end(responder, &first, 99).unwrap();
    let (_, mut initiator) = end(initiator, &reply, 99).unwrap();
    let mut sealed = Vec::new();
    initiator.sealer.seal(b"heartbeat", &mut sealed).unwrap();
    responder.sealer.seal(b"", &mut sealed).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    assert_eq!(hex(&challenge), include_str!("golden/challenge.hex").trim());
    assert_eq!(hex(&first), include_str!("golden/first.hex").trim());
    assert_eq!(hex(&reply), include_str!("golden/reply.hex").trim());
    assert_eq!(hex(&sealed), include_str!("golden/sealed.hex").trim());
}

#[test]
fn a_recorded_first_message_is_worth_nothing() {
    let (_, challenge) = responder();
    let (_, recorded) = go_on(initiator(), &challenge, 99);
    let keys = KEY.roles().unwrap();
    let (fresh, _) = Handshake::responder(&keys, [[4; 32], [2; 32]]);
    assert_eq!(end(fresh, &recorded, 99).unwrap_err(), ChannelError::WrongKey);
    // The challenge makes the difference.
    let (same, _) = Handshake::responder(&keys, [[3; 32], [5; 32]]);
    assert!(end(same, &recorded, 99).is_ok());
}

#[test]
fn both_sides_agree_on_the_role() {
    for role in Role::ALL {
        let (a, b) = shake(Handshake::initiator(&role_key(role), [1; 32]), 7);
        assert_eq!((a.role, b.role), (role, role));
    }
}

#[test]
fn a_role_that_is_not_that_of_the_key_is_refused() {
    let (responder, challenge) = responder();
    let (_, mut first) = go_on(Handshake::initiator(&role_key(Role::Client), [1; 32]), &challenge, 99);
    assert_eq!(first[2], 2);
    first[2] = 1;
    assert_eq!(end(responder, &first, 99).unwrap_err(), ChannelError::WrongKey);
    let (responder, _) = Handshake::responder(&KEY.roles().unwrap(), [[3; 32], [2; 32]]);
    // The key of a role is not enough for a user's handshake.
    first[2] = 3;
    assert_eq!(end(responder, &first, 99).unwrap_err(), ChannelError::WrongKey);
    let (responder, _) = Handshake::responder(&KEY.roles().unwrap(), [[3; 32], [2; 32]]);
    first[2] = 4;
    assert_eq!(end(responder, &first, 99).unwrap_err(), ChannelError::NotFerrolite);
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
    let other = ClusterKey::from_bytes([8; 32]).for_role(Role::Node).unwrap();
    let (responder, challenge) = responder();
    let (initiator, first) = go_on(Handshake::initiator(&other, [1; 32]), &challenge, 99);
    assert_eq!(end(responder, &first, 7).unwrap_err(), ChannelError::WrongKey);
    assert_eq!(end(initiator, &Handshake::REFUSAL, 1).unwrap_err(), ChannelError::WrongKey);
}

#[test]
fn a_responder_without_the_key_is_found_out() {
    let (_, challenge) = responder();
    let (initiator, _) = go_on(initiator(), &challenge, 99);
    let mut forged = vec![0, 48];
    forged.extend([9; 48]);
    assert_eq!(end(initiator, &forged, 50).unwrap_err(), ChannelError::WrongKey);
}

#[test]
fn another_protocol_is_recognised() {
    for speech in [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-x\r\n", &[0, 0, 0, 0]] {
        for side in [responder().0, initiator()] {
            assert_eq!(end(side, speech, 3).unwrap_err(), ChannelError::NotFerrolite);
        }
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
    assert_eq!(b.opener.open(&mut &two[..]), Err(ChannelError::Damaged), "nothing follows damage");
    let (_, mut b) = pair(9);
    assert_eq!(b.opener.open(&mut &two[..]), Err(ChannelError::Damaged), "out of order");
}

#[test]
fn key_text() {
    let text = KEY.to_hex();
    assert_eq!(text.len(), 65);
    assert_eq!(ClusterKey::from_hex(text.as_bytes()).unwrap(), KEY);
    assert_eq!(ClusterKey::from_hex(text.to_uppercase().trim().as_bytes()).unwrap(), KEY);
    for bad in [
        "",
        "07",
        &text[1..],
        &text.replace('7', "g"),
        &format!("{}7", text.trim()),
        &format!("admin:{}", *text),
    ] {
        assert!(ClusterKey::from_hex(bad.as_bytes()).is_err(), "{bad}");
    }
    assert_eq!(format!("{KEY:?} {:?}", role_key(Role::Node)), "ClusterKey(..) RoleKey(node, ..)");
}

#[test]
fn keys_of_roles() {
    // HMAC-BLAKE2s of the labels under the whole key, computed by Python's hmac and hashlib.
    let texts = [
        "node:6a1057ce962d8860976f181a14daf98315fc8d6569b462eec1b9501ef6480d8b\n",
        "client:1ffb2703cc91e314aa4ebb8111bc1a679513b98e09e40bdfae2be8f3aa96e205\n",
    ];
    for (role, text) in Role::ALL.into_iter().zip(texts) {
        let only = KEY.only(role).unwrap();
        assert_eq!(*only.to_hex(), text);
        let read = ClusterKey::from_hex(text.as_bytes()).unwrap();
        assert_eq!(read, only);
        // A role key serves its role as the whole key does, and no other role.
        let (a, _) = shake(Handshake::initiator(&read.for_role(role).unwrap(), [1; 32]), 99);
        assert_eq!(a.role, role);
        let other = if role == Role::Node { Role::Client } else { Role::Node };
        assert_eq!(read.for_role(other).unwrap_err(), WrongRole::Other { has: role, wanted: other });
        assert_eq!(read.only(other).unwrap_err(), WrongRole::Other { has: role, wanted: other });
        assert_eq!(read.roles().unwrap_err(), WrongRole::NotWhole { has: role });
    }
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
        // After a change to a longer length the opener may wait for the rest; it must not have returned a
        // changed message.
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
        for side in [initiator(), responder().0] {
            let _ = side.feed(&mut &bytes[..]);
        }
        let (waiting, _) = go_on(initiator(), &responder().1, 99);
        let _ = waiting.feed(&mut &bytes[..]);
    }
}
