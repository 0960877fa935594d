//! The key of a user: a Curve25519 key pair of its own, with the cluster's key for clients and the manager's
//! public key.

use super::dh::KeyPair;
use super::enrolment::ManagerKey;
use super::key::{BYTES, ClusterKey, NotAKey, Role, RoleKey, hex_into, push_hex};
use alloc::string::String;
use core::fmt;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// The word in front of a user's key in its file.
const WORD: &[u8] = b"user:";

/// The public key of a user, by which the manager knows the user.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UserId(pub [u8; BYTES]);

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserId({self})")
    }
}

/// The secrets with which a user connects: the user's private key, and as a second factor the cluster's key
/// for clients. The manager must prove that it has the private key of the pinned public one. `Debug` prints
/// no secret.
#[derive(Clone)]
pub struct UserKey {
    pair: KeyPair,
    cluster: RoleKey,
    manager: ManagerKey,
}

impl UserKey {
    /// Makes the key of a user. `private` must come from a cryptographically secure source.
    pub(super) fn new(private: Zeroizing<[u8; BYTES]>, cluster: RoleKey, manager: ManagerKey) -> Self {
        Self { pair: KeyPair::new(private), cluster, manager }
    }

    /// Makes the key of another user of the same cluster. `random` must come from a cryptographically secure
    /// source.
    #[must_use]
    pub fn another(&self, random: [u8; BYTES]) -> Self {
        Self::new(Zeroizing::new(random), self.cluster.clone(), self.manager)
    }

    /// Returns the public key.
    #[must_use]
    pub const fn id(&self) -> UserId {
        UserId(*self.pair.public())
    }

    /// Returns true if the key has the key for clients of a whole cluster key.
    #[must_use]
    pub fn is_of(&self, cluster: &ClusterKey) -> bool {
        let ours = cluster.for_role(Role::Client);
        ours.is_ok_and(|ours| {
            let pairs = ours.bytes().iter().zip(self.cluster.bytes());
            pairs.fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
        })
    }

    pub(super) const fn pair(&self) -> &KeyPair {
        &self.pair
    }

    pub(super) const fn cluster(&self) -> &RoleKey {
        &self.cluster
    }

    pub(super) const fn manager(&self) -> &ManagerKey {
        &self.manager
    }

    /// Returns true if a text begins as the key of a user does.
    #[must_use]
    pub fn is_meant(text: &[u8]) -> bool {
        text.trim_ascii_start().starts_with(WORD)
    }

    /// Parses the text form: `user:` and three times 64 hexadecimal digits with colons between them, for the
    /// private key, the cluster's key for clients, and the manager's public key.
    ///
    /// # Errors
    /// [`NotAKey`] if the text has another form.
    pub fn from_text(text: &[u8]) -> Result<Self, NotAKey> {
        let digits = text.trim_ascii().strip_prefix(WORD).ok_or(NotAKey)?;
        let mut parts = digits.split(|&byte| byte == b':');
        let mut next = || -> Result<Zeroizing<[u8; BYTES]>, NotAKey> {
            let mut bytes = Zeroizing::new([0; BYTES]);
            hex_into(parts.next().ok_or(NotAKey)?, &mut bytes)?;
            Ok(bytes)
        };
        let (private, cluster, manager) = (next()?, next()?, next()?);
        match parts.next() {
            Some(_) => Err(NotAKey),
            None => Ok(Self::new(private, RoleKey::of_client(*cluster), ManagerKey::from_bytes(*manager))),
        }
    }

    /// Returns the text form that [`from_text`](Self::from_text) parses, and a line feed.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        // The capacity suffices from the start: a string that grows leaves copies behind.
        let mut text = Zeroizing::new(String::with_capacity(3 * (2 * BYTES + 1) + WORD.len()));
        text.push_str("user:");
        push_hex(&mut text, self.pair.private());
        text.push(':');
        push_hex(&mut text, self.cluster.bytes());
        text.push(':');
        push_hex(&mut text, self.manager.bytes());
        text.push('\n');
        text
    }
}

impl fmt::Debug for UserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserKey({}, ..)", self.id())
    }
}
