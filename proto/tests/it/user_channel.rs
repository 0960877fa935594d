//! The handshake of a user, Noise XXpsk0: golden bytes, recorded and reflected messages, and changed bytes.

use crate::channel::{KEY, end, go_on, responder};
use proptest::prelude::*;
use proto::channel::{Channel, ChannelError, ClusterKey, Handshake, Role, UserKey};

fn key() -> UserKey {
    KEY.user([9; 32]).unwrap()
}

/// The three messages of a handshake, and the channels of the user and of the manager.
struct Shaken {
    first: Vec<u8>,
    reply: Vec<u8>,
    last: Vec<u8>,
    user: Channel,
    manager: Channel,
}

fn shake(key: &UserKey, pieces: usize) -> Result<Shaken, ChannelError> {
    let (manager, challenge) = responder();
    let (user, first) = go_on(Handshake::user(key, [1; 32]), &challenge, pieces);
    let (manager, reply) = go_on(manager, &first, pieces);
    let (last, user) = end(user, &reply, pieces)?;
    let (nothing, manager) = end(manager, &last, pieces)?;
    assert!(nothing.is_empty());
    Ok(Shaken { first, reply, last, user, manager })
}

#[test]
fn golden_bytes() {
    // The bytes come from another implementation of Noise, in Python with its `cryptography` and `hashlib`.
    let Shaken { first, reply, last, .. } = shake(&key(), 99).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    assert_eq!(hex(&first), include_str!("golden/user-first.hex").trim());
    assert_eq!(hex(&reply), include_str!("golden/user-reply.hex").trim());
    assert_eq!(hex(&last), include_str!("golden/user-last.hex").trim());
    assert_eq!(*key().to_text(), include_str!("golden/user-key.txt"));
}

#[test]
fn the_manager_knows_the_user_and_the_channel_works() {
    for pieces in [1, 7, 99] {
        let Shaken { mut user, mut manager, .. } = shake(&key(), pieces).unwrap();
        assert_eq!((manager.role, manager.user, manager.former), (Role::Client, Some(key().id()), false));
        for (from, to) in [(&mut user.sealer, &mut manager.opener), (&mut manager.sealer, &mut user.opener)] {
            let mut sealed = Vec::new();
            from.seal(b"text", &mut sealed).unwrap();
            assert_eq!(to.open(&mut &sealed[..]).unwrap().unwrap(), b"text");
        }
    }
}

#[test]
fn a_recorded_handshake_gets_nothing() {
    let Shaken { first, reply, last, mut user, .. } = shake(&key(), 99).unwrap();
    let mut hello = Vec::new();
    user.sealer.seal(b"hello", &mut hello).unwrap();
    let roles = KEY.roles().unwrap();
    // The first message does not fit another challenge: the manager computes nothing on the curve.
    let (manager, _) = Handshake::responder(&roles, [[4; 32], [2; 32]]);
    assert_eq!(end(manager, &first, 99).unwrap_err(), ChannelError::WrongKey);
    // Even with the same challenge, the manager's new ephemeral key makes the last message worthless.
    let (manager, _) = Handshake::responder(&roles, [[3; 32], [5; 32]]);
    let (manager, _) = go_on(manager, &first, 99);
    assert_eq!(end(manager, &last, 99).unwrap_err(), ChannelError::WrongKey);
    let (manager, _) = Handshake::responder(&roles, [[3; 32], [5; 32]]);
    let (manager, _) = go_on(manager, &first, 99);
    assert!(manager.feed(&mut &hello[..]).is_err(), "a message before the handshake is done");
    // A recorded answer does not make a manager for another attempt of the user.
    let (user, _) = go_on(Handshake::user(&key(), [6; 32]), &responder().1, 99);
    assert_eq!(end(user, &reply, 99).unwrap_err(), ChannelError::WrongKey);
}

#[test]
fn a_reflected_message_is_refused() {
    let Shaken { first, reply, .. } = shake(&key(), 99).unwrap();
    let (user, _) = go_on(Handshake::user(&key(), [1; 32]), &responder().1, 99);
    assert!(matches!(end(user, &first, 99), Err(ChannelError::NotFerrolite)), "another length");
    let (manager, _) = go_on(responder().0, &first, 99);
    assert!(matches!(end(manager, &reply, 99), Err(ChannelError::NotFerrolite)), "another length");
    let (manager, _) = go_on(responder().0, &first, 99);
    // The encrypted static key of the manager and its tag, in place of the user's.
    let part = [&[0, 64][..], &reply[2 + 32..]].concat();
    assert_eq!(end(manager, &part, 99).unwrap_err(), ChannelError::WrongKey);
}

#[test]
fn each_changed_bit_of_a_handshake_is_noticed() {
    let Shaken { first, reply, last, .. } = shake(&key(), 99).unwrap();
    let flip = |message: &[u8], bit: usize| {
        let mut changed = message.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        changed
    };
    for bit in 16..8 * first.len() {
        assert!(responder().0.feed(&mut &flip(&first, bit)[..]).is_err(), "first, bit {bit}");
    }
    for bit in 16..8 * reply.len() {
        let (user, _) = go_on(Handshake::user(&key(), [1; 32]), &responder().1, 99);
        // X25519 ignores the highest bit of a public key (RFC 7748, section 5), and Noise's hash does not.
        assert!(user.feed(&mut &flip(&reply, bit)[..]).is_err(), "reply, bit {bit}");
    }
    for bit in 16..8 * last.len() {
        let (manager, _) = go_on(responder().0, &first, 99);
        assert!(manager.feed(&mut &flip(&last, bit)[..]).is_err(), "last, bit {bit}");
    }
}

#[test]
fn without_the_key_for_clients_or_with_another_manager_there_is_no_channel() {
    let other = ClusterKey::from_bytes([8; 32]).user([9; 32]).unwrap();
    let (manager, challenge) = responder();
    let (_, first) = go_on(Handshake::user(&other, [1; 32]), &challenge, 99);
    assert_eq!(end(manager, &first, 99).unwrap_err(), ChannelError::WrongKey);
    // This key file has the right key for clients, and pins the public key of another manager.
    let (text, pinned) = (key().to_text(), other.to_text());
    let (ours, theirs) = (text.rsplit_once(':').unwrap().0, pinned.rsplit_once(':').unwrap().1);
    let mixed = UserKey::from_text(format!("{ours}:{theirs}").as_bytes()).unwrap();
    assert_eq!(shake(&mixed, 99).err(), Some(ChannelError::WrongManager));
}

#[test]
fn a_former_cluster_key_is_known_as_that() {
    let keys = ClusterKey::from_bytes([8; 32]).roles().unwrap().or(KEY.roles().unwrap());
    let (manager, challenge) = Handshake::responder(&keys, [[3; 32], [2; 32]]);
    let (user, first) = go_on(Handshake::user(&key(), [1; 32]), &challenge, 99);
    let (manager, reply) = go_on(manager, &first, 99);
    let (last, _) = end(user, &reply, 99).unwrap();
    let (_, channel) = end(manager, &last, 99).unwrap();
    assert_eq!((channel.former, channel.user), (true, Some(key().id())));
}

#[test]
fn the_text_of_a_key_is_read_or_refused() {
    let text = key().to_text();
    assert!(UserKey::is_meant(text.as_bytes()));
    assert_eq!(*UserKey::from_text(text.as_bytes()).unwrap().to_text(), *text);
    let cut = text.trim().rsplit_once(':').unwrap().0;
    for bad in
        ["", "user:", "user:07", cut, &text[5..], &format!("{}:00", text.trim()), &text.replace('0', "g")]
    {
        assert!(UserKey::from_text(bad.as_bytes()).is_err(), "{bad}");
    }
    let shown = format!("{:?}", key());
    assert!(shown.starts_with("UserKey(") && !shown.contains("0909"), "{shown}");
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let Shaken { first, .. } = shake(&key(), 99).unwrap();
        let (user, _) = go_on(Handshake::user(&key(), [1; 32]), &responder().1, 99);
        let (manager, _) = go_on(responder().0, &first, 99);
        for side in [user, manager] {
            let _ = side.feed(&mut &bytes[..]);
        }
        let _ = UserKey::from_text(&bytes);
    }
}
