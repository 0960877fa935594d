//! Vouchers of the manager: the proof that a member may set up a connection with another member.
//!
//! Each membership has a [`MemberKey`], which the manager and that member know. The key of a voucher is
//! computed from the responder's member key and from the [`Attempt`]. The manager sends it to the requester,
//! and the responder computes it. Both ends encrypt the messages of the set-up with it, so a message proves
//! that its sender has the voucher, or is the node that the voucher is for.
//!
//! Keys are derived by BLAKE2s with a key (RFC 7693); messages are encrypted by ChaCha20-Poly1305 (RFC 8439).

use crate::{Incarnation, NodeId};
use blake2::Blake2sMac256;
use blake2::digest::Mac;
use chacha20poly1305::aead::{AeadInOut, KeyInit as _};
use chacha20poly1305::{ChaCha20Poly1305, Tag};
use core::fmt;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The size of each key, in bytes.
const KEY: usize = 32;

/// A number that one key is used with once.
pub type Nonce = [u8; 12];

/// The proof that a message and its header are unchanged.
pub type MessageTag = [u8; 16];

/// A member: a node in one incarnation.
type MemberId = (NodeId, Incarnation);

/// An attempt to set up a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Attempt {
    /// The member that wants the connection, and has the voucher.
    pub requester: MemberId,
    /// The member that the voucher is for.
    pub responder: MemberId,
    /// The time of the manager's clock at which it gave the voucher, in nanoseconds. No two vouchers of a
    /// manager have the same.
    pub stamp: u64,
}

macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
        pub struct $name([u8; KEY]);

        impl $name {
            /// Makes a key of these bytes, which must come from a cryptographically secure source.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; KEY]) -> Self {
                Self(bytes)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    };
}

key! {
    /// The manager's secret, from which it computes the keys of members. It is overwritten when dropped, and
    /// `Debug` never prints it.
    VouchingSecret
}

key! {
    /// The key of one membership, which the manager and the member know. It is overwritten when dropped, and
    /// `Debug` never prints it.
    MemberKey
}

key! {
    /// The proof of a membership, which the manager and the member know: with it a node resumes its
    /// membership on a new connection. It is overwritten when dropped, and `Debug` never prints it.
    ResumeSecret
}

key! {
    /// The key of one voucher, which the manager and the two ends of an attempt know. It is overwritten when
    /// dropped, and `Debug` never prints it.
    VoucherKey
}

impl VouchingSecret {
    /// Returns the key of a member.
    #[must_use]
    pub fn member(&self, (node, incarnation): MemberId) -> MemberKey {
        let parts = [&node.0.to_le_bytes()[..], &incarnation.0.to_le_bytes()];
        MemberKey(derive(&self.0, b"ferrolite member key", &parts))
    }

    /// Returns the secret with which a member resumes its membership.
    #[must_use]
    pub fn resume(&self, (node, incarnation): MemberId) -> ResumeSecret {
        let parts = [&node.0.to_le_bytes()[..], &incarnation.0.to_le_bytes()];
        ResumeSecret(derive(&self.0, b"ferrolite resume", &parts))
    }
}

impl MemberKey {
    /// Returns the key of the voucher for an attempt whose responder has this key.
    #[must_use]
    pub fn voucher(&self, attempt: &Attempt) -> VoucherKey {
        let Attempt { requester, responder, stamp } = attempt;
        let parts = [
            &requester.0.0.to_le_bytes()[..],
            &requester.1.0.to_le_bytes(),
            &responder.0.0.to_le_bytes(),
            &responder.1.0.to_le_bytes(),
            &stamp.to_le_bytes(),
        ];
        VoucherKey(derive(&self.0, b"ferrolite voucher", &parts))
    }
}

impl VoucherKey {
    /// Encrypts `text` in place, and returns its tag. `nonce` must not be used with this key again; `header`
    /// is not encrypted, but the tag covers it. Allocates nothing.
    ///
    /// # Panics
    /// If `text` has 256 GiB or more.
    #[must_use]
    pub fn encrypt(&self, nonce: &Nonce, header: &[u8], text: &mut [u8]) -> MessageTag {
        let tag = self.cipher().encrypt_inout_detached(nonce.into(), header, text.into());
        tag.expect("a message is shorter than the 256 GiB limit of a nonce").into()
    }

    /// Decrypts `text` in place. Allocates nothing.
    ///
    /// # Errors
    /// [`Forged`] if the text or its header was not encrypted with this key and nonce. `text` is unchanged
    /// then.
    pub fn decrypt(
        &self,
        nonce: &Nonce,
        header: &[u8],
        text: &mut [u8],
        tag: &MessageTag,
    ) -> Result<(), Forged> {
        let tag: &Tag = tag.into();
        self.cipher().decrypt_inout_detached(nonce.into(), header, text.into(), tag).map_err(|_| Forged)
    }

    fn cipher(&self) -> ChaCha20Poly1305 {
        ChaCha20Poly1305::new((&self.0).into())
    }
}

/// A message that the holder of the key has not encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is forged")]
pub struct Forged;

/// Computes the keyed BLAKE2s of a label and of parts with fixed lengths.
fn derive(key: &[u8; KEY], label: &[u8], parts: &[&[u8]]) -> [u8; KEY] {
    let mut mac = <Blake2sMac256 as Mac>::new(key.into());
    mac.update(label);
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    fn attempt(stamp: u64) -> Attempt {
        Attempt { requester: (NodeId(1), Incarnation(7)), responder: (NodeId(2), Incarnation(8)), stamp }
    }

    #[test]
    fn each_part_of_an_attempt_decides_its_key() {
        let member = MemberKey::from_bytes([1; KEY]);
        let base = attempt(9);
        let one = Attempt { requester: (NodeId(3), Incarnation(7)), ..base };
        let two = Attempt { requester: (NodeId(1), Incarnation(6)), ..base };
        let three = Attempt { responder: (NodeId(1), Incarnation(8)), ..base };
        let four = Attempt { responder: (NodeId(2), Incarnation(9)), ..base };
        for other in [one, two, three, four, attempt(10)] {
            assert_ne!(member.voucher(&base), member.voucher(&other), "{other:?}");
        }
        assert_eq!(member.voucher(&base), member.voucher(&attempt(9)));
        let secret = VouchingSecret::from_bytes([2; KEY]);
        let keys = [(1, 7), (1, 8), (2, 7)].map(|(n, i)| secret.member((NodeId(n), Incarnation(i))));
        assert!(keys[0] != keys[1] && keys[0] != keys[2] && keys[1] != keys[2]);
        assert_eq!(format!("{secret:?} {:?}", keys[0]), "VouchingSecret(..) MemberKey(..)");
    }

    #[test]
    fn a_changed_message_is_forged() {
        let key = MemberKey::from_bytes([1; KEY]).voucher(&attempt(9));
        let (nonce, header, mut text) = ([3; 12], [4; 8], *b"queue pair 17");
        let tag = key.encrypt(&nonce, &header, &mut text);
        assert_ne!(&text, b"queue pair 17");
        let sent = text;
        let other = MemberKey::from_bytes([1; KEY]).voucher(&attempt(10));
        let (mut bent, mut bent_tag) = (sent, tag);
        bent[0] ^= 1;
        bent_tag[15] ^= 1;
        assert_eq!(key.decrypt(&nonce, &header, &mut bent, &tag), Err(Forged));
        assert_eq!(key.decrypt(&nonce, &header, &mut text, &bent_tag), Err(Forged));
        assert_eq!(key.decrypt(&nonce, &[5; 8], &mut text, &tag), Err(Forged));
        assert_eq!(key.decrypt(&[0; 12], &header, &mut text, &tag), Err(Forged));
        assert_eq!(other.decrypt(&nonce, &header, &mut text, &tag), Err(Forged));
        assert_eq!(text, sent, "a refused text is unchanged");
        assert_eq!(key.decrypt(&nonce, &header, &mut text, &tag), Ok(()));
        assert_eq!(&text, b"queue pair 17");
    }
}
