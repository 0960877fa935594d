//! The enrolment of a node: its key for a token, and all failures.
use proptest::prelude::*;
use proto::channel::enrolment::{
    Enrolling, EnrolmentError, KernelDigest, LONGEST_ANSWER_FRAME, ManagerKey, REQUEST_FRAME, Registrar,
    Request, Token,
};
use proto::channel::{ChannelError, ClusterKey, Role, WrongRole};
use verbs::MacAddr;

const KEY: ClusterKey = ClusterKey::from_bytes([7; 32]);
/// The length of a frame's length, in bytes.
const LENGTH: usize = 2;

fn registrar() -> Registrar {
    KEY.registrar().unwrap()
}

fn request() -> Request {
    Request {
        token: Token::from_bytes([9; 32]),
        mac: MacAddr([2, 0, 0, 0, 0, 1]),
        kernel: KernelDigest::of([&b"kernel"[..]]),
    }
}

fn asks(manager: &ManagerKey) -> (Enrolling, Vec<u8>) {
    let (node, frame) = Enrolling::new(manager, &request(), [1; 32]);
    assert_eq!(frame.len(), REQUEST_FRAME);
    assert_eq!(frame[..LENGTH], ((frame.len() - LENGTH) as u16).to_be_bytes());
    (node, frame[LENGTH..].to_vec())
}

#[test]
fn a_token_is_exchanged_for_the_key_of_a_node() {
    let (node, message) = asks(&registrar().public());
    let (got, reply) = registrar().read(&message, [2; 32]).unwrap();
    assert_eq!(got, request());
    let key = KEY.only(Role::Node).unwrap();
    let answer = reply.key(&key);
    assert!(answer.len() <= LONGEST_ANSWER_FRAME);
    let secrets = [got.token.to_hex().as_bytes().to_vec(), key.to_hex().trim().as_bytes()[5..].to_vec()];
    for secret in secrets {
        assert_eq!(secret.len(), 64);
        assert!(![&message, &answer].iter().any(|sent| sent.windows(64).any(|part| part == secret)));
    }
    assert!(node.finish(&answer[LENGTH..]).unwrap() == key);
}

#[test]
fn a_refusal_has_a_reason() {
    let (node, message) = asks(&registrar().public());
    let (_, reply) = registrar().read(&message, [2; 32]).unwrap();
    let answer = reply.refuse("too late");
    assert_eq!(node.finish(&answer[LENGTH..]).unwrap_err(), EnrolmentError::Refused("too late".into()));
    let (_, reply) = registrar().read(&message, [2; 32]).unwrap();
    assert!(reply.refuse(&"long ".repeat(1000)).len() <= LONGEST_ANSWER_FRAME);
}

#[test]
fn another_manager_reads_nothing_and_is_not_believed() {
    let other = ClusterKey::from_bytes([8; 32]).registrar().unwrap();
    let (node, message) = asks(&registrar().public());
    assert_eq!(other.read(&message, [2; 32]).unwrap_err(), ChannelError::WrongKey);
    // An answer to the same request of a node that trusts the other manager.
    let (_, to_other) = asks(&other.public());
    let (_, reply) = other.read(&to_other, [2; 32]).unwrap();
    let answer = reply.key(&KEY);
    assert_eq!(node.finish(&answer[LENGTH..]).unwrap_err(), ChannelError::WrongKey.into());
}

#[test]
fn the_key_of_one_role_enrols_nobody() {
    let node = KEY.only(Role::Node).unwrap();
    assert_eq!(node.registrar().unwrap_err(), WrongRole::NotWhole { has: Role::Node });
}

#[test]
fn texts() {
    let public = registrar().public();
    assert_eq!(ManagerKey::from_hex(&public.to_string()), Ok(public));
    assert_eq!(Token::from_hex(&request().token.to_hex()), Ok(request().token));
    for bad in ["", "12", &"g".repeat(64), &format!("node:{}", "1".repeat(64))] {
        assert!(ManagerKey::from_hex(bad).is_err(), "{bad}");
    }
    assert_eq!(format!("{:?}", request().token), "Token(..)");
}

#[test]
fn parts_of_a_kernel_are_filled_up_to_pages() {
    let page = [&b"ab"[..], &[0; 4094]].concat();
    assert_eq!(KernelDigest::of([&b"ab"[..]]), KernelDigest::of([&page[..]]));
    assert_ne!(KernelDigest::of([&b"a"[..], b"b"]), KernelDigest::of([&b"ab"[..]]));
    assert_eq!(
        KernelDigest::of([&page[..], &page]),
        KernelDigest::of([&[page.clone(), page.clone()].concat()[..]])
    );
}

proptest! {
    /// A damaged frame is refused by either side.
    #[test]
    fn damage_is_found(at in 0..REQUEST_FRAME - LENGTH, bit in 0_u32..8) {
        let (node, mut message) = asks(&registrar().public());
        let (_, reply) = registrar().read(&message, [2; 32]).unwrap();
        let mut answer = reply.key(&KEY)[LENGTH..].to_vec();
        message[at] ^= 1_u8 << bit;
        // The highest bit of a public key counts for nothing on the curve, but for the hash of the exchange.
        prop_assert!(registrar().read(&message, [2; 32]).is_err());
        let at = at % answer.len();
        answer[at] ^= 1_u8 << bit;
        prop_assert!(node.finish(&answer).is_err());
    }

    /// Any bytes are refused.
    #[test]
    fn bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(registrar().read(&bytes, [2; 32]).is_err());
        let (node, _) = asks(&registrar().public());
        prop_assert!(node.finish(&bytes).is_err());
    }
}
