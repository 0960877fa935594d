//! The cluster key, the role keys derived from it, and the text form of keys in files.

use super::dh::KeyPair;
use super::enrolment::{ManagerKey, Registrar};
use super::user::UserKey;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// The size of a key, in bytes.
pub(super) const BYTES: usize = 32;
/// The label with which the private key is derived by which users know a manager.
const IDENTITY: &[u8] = b"ferrolite identity: manager";
/// The label with which the private key of a manager that enrols nodes is derived.
const REGISTRAR: &[u8] = b"ferrolite enrolment: manager";

/// The role of the side that connects to the manager. Each role has a key of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A node of the cluster: it may join.
    Node,
    /// A client: it may submit jobs, list the nodes and shut the cluster down, but not join.
    Client,
}

impl Role {
    /// All roles: node and client.
    pub const ALL: [Self; 2] = [Self::Node, Self::Client];

    /// Returns the byte that stands for the role on the wire.
    pub(super) const fn byte(self) -> u8 {
        match self {
            Self::Node => 1,
            Self::Client => 2,
        }
    }

    /// Returns the role for which a byte on the wire stands.
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.byte() == byte)
    }

    /// Returns the role's name, as in key files.
    const fn word(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Client => "client",
        }
    }

    /// Returns the label with which the role's key is derived.
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Node => b"ferrolite role key: node",
            Self::Client => b"ferrolite role key: client",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The secret of a key file: either the cluster's whole key, from which all others are derived, or the key of
/// one role, from which neither the whole key nor that of the other role can be computed. It is overwritten
/// when dropped, and `Debug` never prints it.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct ClusterKey {
    bytes: [u8; BYTES],
    /// The role of the key; `None` for the whole key.
    #[zeroize(skip)]
    only: Option<Role>,
}

/// A text that is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a cluster key: want 64 hexadecimal digits")]
pub struct NotAKey;

/// A key of one role was used where another is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongRole {
    /// The key is that of the other role.
    #[error("this is the key of a {has}: a {wanted} needs the key of a {wanted} or the whole cluster key")]
    Other {
        /// The role of the key.
        has: Role,
        /// The role that is needed.
        wanted: Role,
    },
    /// A key of one role where the whole key is needed.
    #[error("this is the key of a {has}: a manager needs the whole cluster key")]
    NotWhole {
        /// The role of the key.
        has: Role,
    },
    /// A key of one role, with which no key of a user can be made.
    #[error("this is the key of a {has}: a user's key is made with the whole cluster key or a user's key")]
    NoUsers {
        /// The role of the key.
        has: Role,
    },
}

impl ClusterKey {
    /// The size of a key, in bytes.
    pub const BYTES: usize = BYTES;

    /// Makes a whole key of these bytes, which must come from a cryptographically secure source.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; BYTES]) -> Self {
        Self { bytes, only: None }
    }

    /// Parses the text form: 64 hexadecimal digits, after `node:` or `client:` for the key of one role. White
    /// space around it is ignored.
    pub fn from_hex(text: &[u8]) -> Result<Self, NotAKey> {
        let text = text.trim_ascii();
        let of_role =
            |role: Role| Some((role, text.strip_prefix(role.word().as_bytes())?.strip_prefix(b":")?));
        let (only, digits) = match Role::ALL.into_iter().find_map(of_role) {
            Some((role, digits)) => (Some(role), digits),
            None => (None, text),
        };
        let mut key = Self { bytes: [0; BYTES], only };
        hex_into(digits, &mut key.bytes)?;
        Ok(key)
    }

    /// Returns the text form that [`from_hex`](Self::from_hex) parses, and a line feed.
    #[must_use]
    pub fn to_hex(&self) -> Zeroizing<String> {
        // The capacity suffices from the start: a string that grows leaves copies behind.
        let mut text = Zeroizing::new(String::with_capacity(2 * BYTES + 16));
        if let Some(role) = self.only {
            text.push_str(role.word());
            text.push(':');
        }
        push_hex(&mut text, &self.bytes);
        text.push('\n');
        text
    }

    /// Returns the key with which a peer of that role connects.
    ///
    /// # Errors
    /// [`WrongRole::Other`] if this is the key of the other role.
    pub fn for_role(&self, role: Role) -> Result<RoleKey, WrongRole> {
        match self.only {
            None => Ok(RoleKey { role, bytes: derive(&self.bytes, role.label()) }),
            Some(only) if only == role => Ok(RoleKey { role, bytes: self.bytes }),
            Some(has) => Err(WrongRole::Other { has, wanted: role }),
        }
    }

    /// Returns the key of one role alone, for a key file.
    ///
    /// # Errors
    /// [`WrongRole::Other`] if this is the key of the other role.
    pub fn only(&self, role: Role) -> Result<Self, WrongRole> {
        self.for_role(role).map(|key| Self { bytes: key.bytes, only: Some(role) })
    }

    /// Returns the keys of all roles, for the side that accepts connections.
    ///
    /// # Errors
    /// [`WrongRole::NotWhole`] if this is the key of one role.
    pub fn roles(&self) -> Result<RoleKeys, WrongRole> {
        if let Some(has) = self.only {
            return Err(WrongRole::NotWhole { has });
        }
        let [node, client] = Role::ALL.map(|role| RoleKey { role, bytes: derive(&self.bytes, role.label()) });
        Ok(RoleKeys { node, client, identity: self.identity(), former: None })
    }

    /// Returns the key pair by which users know a manager that has this whole key.
    fn identity(&self) -> KeyPair {
        KeyPair::new(Zeroizing::new(derive(&self.bytes, IDENTITY)))
    }

    /// Makes the key of a user of this cluster. `random` must come from a cryptographically secure source.
    ///
    /// # Errors
    /// [`WrongRole::NoUsers`] if this is the key of one role, from which the manager's public key cannot be
    /// computed.
    pub fn user(&self, random: [u8; BYTES]) -> Result<UserKey, WrongRole> {
        if let Some(has) = self.only {
            return Err(WrongRole::NoUsers { has });
        }
        let manager = ManagerKey::from_bytes(*self.identity().public());
        Ok(UserKey::new(Zeroizing::new(random), self.for_role(Role::Client)?, manager))
    }

    /// Returns the key pair of a manager that enrols nodes.
    ///
    /// # Errors
    /// [`WrongRole::NotWhole`] if this is the key of one role.
    pub fn registrar(&self) -> Result<Registrar, WrongRole> {
        match self.only {
            Some(has) => Err(WrongRole::NotWhole { has }),
            None => Ok(Registrar::new(Zeroizing::new(derive(&self.bytes, REGISTRAR)))),
        }
    }

    /// Returns the bytes of a whole key.
    pub(super) const fn whole(&self) -> Option<[u8; BYTES]> {
        match self.only {
            Some(_) => None,
            None => Some(self.bytes),
        }
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

/// The key with which a peer proves its role: the pre-shared key of its handshakes. It is overwritten when
/// dropped, and `Debug` never prints it.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct RoleKey {
    #[zeroize(skip)]
    role: Role,
    bytes: [u8; BYTES],
}

impl RoleKey {
    /// Makes the key of a client.
    pub(super) const fn of_client(bytes: [u8; BYTES]) -> Self {
        Self { role: Role::Client, bytes }
    }

    /// Returns the role of the key.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Returns the bytes, for the handshake.
    pub(super) const fn bytes(&self) -> &[u8; BYTES] {
        &self.bytes
    }
}

impl fmt::Debug for RoleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RoleKey({}, ..)", self.role)
    }
}

/// The keys of all roles, and the key pair by which users know the manager.
#[derive(Clone)]
pub struct RoleKeys {
    node: RoleKey,
    client: RoleKey,
    identity: KeyPair,
    /// The keys of the former cluster key, which are accepted as well.
    former: Option<Arc<Self>>,
}

impl RoleKeys {
    /// Accepts the keys of a former cluster key as well.
    #[must_use]
    pub fn or(mut self, former: Self) -> Self {
        self.former = Some(Arc::new(former));
        self
    }

    /// Returns these keys, and then those of the former cluster key.
    pub(super) fn generations(&self) -> impl Iterator<Item = &Self> {
        core::iter::once(self).chain(self.former.as_deref())
    }

    pub(super) const fn identity(&self) -> &KeyPair {
        &self.identity
    }

    /// Returns the key of a role.
    pub(super) const fn of(&self, role: Role) -> &RoleKey {
        match role {
            Role::Node => &self.node,
            Role::Client => &self.client,
        }
    }
}

impl fmt::Debug for RoleKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RoleKeys(..)")
    }
}

/// Parses 64 hexadecimal digits.
pub(super) fn hex_into(digits: &[u8], bytes: &mut [u8; BYTES]) -> Result<(), NotAKey> {
    if digits.len() != 2 * BYTES {
        return Err(NotAKey);
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        for &digit in pair {
            let value = char::from(digit).to_digit(16).ok_or(NotAKey)?;
            *byte = *byte << 4 | u8::try_from(value).map_err(|_| NotAKey)?;
        }
    }
    Ok(())
}

/// Appends 64 hexadecimal digits.
pub(super) fn push_hex(text: &mut String, bytes: &[u8; BYTES]) {
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
        }
    }
}

/// Computes HMAC-BLAKE2s of a label under the whole key.
fn derive(whole: &[u8; BYTES], label: &[u8]) -> [u8; BYTES] {
    let mut key = [0; BYTES];
    // The resolver has the hash that the handshake uses.
    let mut hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s).expect("BLAKE2s");
    hash.hmac(whole, label, &mut key);
    key
}
