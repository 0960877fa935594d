//! The cluster key, the keys of roles that are derived from it, and the text form in which keys are kept in files.

use alloc::string::String;
use core::fmt;
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Bytes of a key.
const BYTES: usize = 32;

/// What the side that connects is to the manager. Each role has a key of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A node of the cluster: it may join.
    Node,
    /// A client: it may submit jobs, list the nodes and shut the cluster down, but not join.
    Client,
}

impl Role {
    /// Both roles.
    pub const ALL: [Self; 2] = [Self::Node, Self::Client];

    /// The byte that names the role on the wire.
    pub(super) const fn byte(self) -> u8 {
        match self {
            Self::Node => 1,
            Self::Client => 2,
        }
    }

    /// The role that a byte on the wire names.
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.byte() == byte)
    }

    /// The role's name, which stands in files with its key.
    const fn word(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Client => "client",
        }
    }

    /// The label that the role's key is derived with.
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

/// The secret of a key file: the cluster's whole key, of which all others are derived, or the key of one role alone,
/// from which neither the whole key nor that of the other role can be computed. Overwritten when dropped, never printed
/// by `Debug`.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct ClusterKey {
    bytes: [u8; BYTES],
    /// The role whose key this is; `None` for the whole key.
    #[zeroize(skip)]
    only: Option<Role>,
}

/// A text that is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a cluster key: want 64 hexadecimal digits")]
pub struct NotAKey;

/// A key of one role, given where another is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongRole {
    /// A key of the other role.
    #[error("the key is one for a {has}: a {wanted} needs the key of a {wanted} or the whole cluster key")]
    Other {
        /// Whose key it is.
        has: Role,
        /// Whose key is needed.
        wanted: Role,
    },
    /// A key of one role where the whole key is needed.
    #[error("the key is one for a {has}: a manager needs the whole cluster key")]
    NotWhole {
        /// Whose key it is.
        has: Role,
    },
}

impl ClusterKey {
    /// Bytes of a key.
    pub const BYTES: usize = BYTES;

    /// The whole key of these bytes, which must come from a source fit for keys.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; BYTES]) -> Self {
        Self { bytes, only: None }
    }

    /// Reads the text form: 64 hexadecimal digits, for the key of one role behind `node:` or `client:`; white space
    /// around them is ignored.
    pub fn from_hex(text: &[u8]) -> Result<Self, NotAKey> {
        let text = text.trim_ascii();
        let of_role =
            |role: Role| Some((role, text.strip_prefix(role.word().as_bytes())?.strip_prefix(b":")?));
        let (only, digits) = match Role::ALL.into_iter().find_map(of_role) {
            Some((role, digits)) => (Some(role), digits),
            None => (None, text),
        };
        if digits.len() != 2 * BYTES {
            return Err(NotAKey);
        }
        let mut key = Self { bytes: [0; BYTES], only };
        for (byte, pair) in key.bytes.iter_mut().zip(digits.chunks_exact(2)) {
            for &digit in pair {
                let value = char::from(digit).to_digit(16).ok_or(NotAKey)?;
                *byte = *byte << 4 | u8::try_from(value).map_err(|_| NotAKey)?;
            }
        }
        Ok(key)
    }

    /// The text form, as [`from_hex`](Self::from_hex) reads it, and a line feed.
    #[must_use]
    pub fn to_hex(&self) -> Zeroizing<String> {
        // Room for all of it from the start: a string that grows leaves copies behind.
        let mut text = Zeroizing::new(String::with_capacity(2 * BYTES + 16));
        if let Some(role) = self.only {
            text.push_str(role.word());
            text.push(':');
        }
        for byte in self.bytes {
            for nibble in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
            }
        }
        text.push('\n');
        text
    }

    /// The key with which a peer of that role connects.
    ///
    /// # Errors
    /// [`WrongRole::Other`] if this is the key of the other role.
    pub fn for_role(&self, role: Role) -> Result<RoleKey, WrongRole> {
        match self.only {
            None => Ok(RoleKey { role, bytes: derive(&self.bytes, role) }),
            Some(only) if only == role => Ok(RoleKey { role, bytes: self.bytes }),
            Some(has) => Err(WrongRole::Other { has, wanted: role }),
        }
    }

    /// The key of one role alone, to be kept in a file.
    ///
    /// # Errors
    /// [`WrongRole::Other`] if this is the key of the other role.
    pub fn only(&self, role: Role) -> Result<Self, WrongRole> {
        self.for_role(role).map(|key| Self { bytes: key.bytes, only: Some(role) })
    }

    /// The keys of all roles, for the side that accepts connections.
    ///
    /// # Errors
    /// [`WrongRole::NotWhole`] if this is the key of one role.
    pub fn roles(&self) -> Result<RoleKeys, WrongRole> {
        if let Some(has) = self.only {
            return Err(WrongRole::NotWhole { has });
        }
        let [node, client] = Role::ALL.map(|role| RoleKey { role, bytes: derive(&self.bytes, role) });
        Ok(RoleKeys { node, client })
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

/// The key with which a peer of a role proves that it may be one: the pre-shared key of its handshakes. Overwritten when
/// dropped, never printed by `Debug`.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct RoleKey {
    #[zeroize(skip)]
    role: Role,
    bytes: [u8; BYTES],
}

impl RoleKey {
    /// Whose key it is.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The bytes, for the handshake.
    pub(super) const fn bytes(&self) -> &[u8; BYTES] {
        &self.bytes
    }
}

impl fmt::Debug for RoleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RoleKey({}, ..)", self.role)
    }
}

/// The keys of all roles.
#[derive(Clone, Debug)]
pub struct RoleKeys {
    node: RoleKey,
    client: RoleKey,
}

impl RoleKeys {
    /// The key of a role.
    pub(super) const fn of(&self, role: Role) -> &RoleKey {
        match role {
            Role::Node => &self.node,
            Role::Client => &self.client,
        }
    }
}

/// HMAC-BLAKE2s under the whole key, of the role's label.
fn derive(whole: &[u8; BYTES], role: Role) -> [u8; BYTES] {
    let mut key = [0; BYTES];
    // The resolver knows the hash that the handshake uses.
    let mut hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s).expect("BLAKE2s");
    hash.hmac(whole, role.label(), &mut key);
    key
}
