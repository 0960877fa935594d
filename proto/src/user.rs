//! The users of a cluster and their roles, and the entries of the audit log.

use crate::channel::UserId;
use alloc::string::String;
use blake2::{Blake2s256, Digest};
use core::fmt;
use serde::{Deserialize, Serialize};

/// The role of a user. Each role may do what the roles before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum UserRole {
    /// Sees nodes, jobs and datasets.
    Viewer,
    /// Runs jobs, and ends its own.
    User,
    /// Changes nodes, and ends all jobs.
    Operator,
    /// Changes users and keys, and reads the audit log.
    Admin,
}

impl UserRole {
    /// All roles, in order.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::User, Self::Operator, Self::Admin];

    /// Returns the role's name.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::User => "user",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for UserRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserStatus {
    /// The name, which is unique.
    pub name: String,
    /// The role.
    pub role: UserRole,
    /// The public key.
    pub key: UserId,
}

/// The digest of an entry of the audit log and of all entries before it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AuditHash(pub [u8; 32]);

impl fmt::Display for AuditHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for AuditHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuditHash({self})")
    }
}

/// An entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// The number of the entry, from 1 without gaps.
    pub number: u64,
    /// The time, in milliseconds since 1970 (UTC).
    pub time_ms: u64,
    /// The user and the address, for people.
    pub who: String,
    /// The request.
    pub what: String,
    /// The result: `done`, or the reason of a refusal.
    pub result: String,
    /// The digest of this entry and the hash of the entry before it.
    pub hash: AuditHash,
}

impl AuditEntry {
    /// Returns the hash that the entry must have after an entry with the hash `before`: BLAKE2s of `before`,
    /// the number and the time in eight bytes each, and the three texts, each behind its length in eight
    /// bytes. All numbers are little-endian.
    #[must_use]
    pub fn expected_hash(&self, before: AuditHash) -> AuditHash {
        let mut hash = Blake2s256::new();
        hash.update(before.0);
        hash.update(self.number.to_le_bytes());
        hash.update(self.time_ms.to_le_bytes());
        for text in [&self.who, &self.what, &self.result] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        AuditHash(hash.finalize().into())
    }
}
