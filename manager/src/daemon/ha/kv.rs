//! The requests that managers send to the store that they share. It is etcd, or a model of etcd in tests.

use crate::daemon::SaveError;
use std::fmt::Debug;
use std::time::Duration;

/// A request to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Makes a lease of this many seconds.
    Grant {
        /// The length of the lease, in seconds.
        ttl: u64,
    },
    /// Renews a lease.
    Renew {
        /// The lease.
        lease: i64,
    },
    /// Ends a lease, and removes its keys.
    Revoke {
        /// The lease.
        lease: i64,
    },
    /// Reads the keys from one key on up to another one, which is not included.
    Range {
        /// The first key.
        from: String,
        /// The end.
        end: String,
        /// The maximum number of keys.
        limit: u32,
    },
    /// Does several operations at once.
    Txn(Txn),
}

/// Operations that are all done, or none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// The conditions.
    pub when: Vec<When>,
    /// The operations that are done if all conditions hold. No key is in two of them.
    pub then: Vec<Op>,
    /// The keys that are read if a condition does not hold.
    pub otherwise: Vec<String>,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// There is no such key.
    Absent(String),
    /// The key has been created at this revision of the store.
    Created(String, i64),
    /// The key has this value.
    Is(String, Vec<u8>),
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets the value of a key.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Vec<u8>,
        /// The lease with which the key ends.
        lease: Option<i64>,
    },
    /// Removes a key.
    Delete(String),
    /// Removes the keys with a prefix.
    DeleteAll(String),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The lease that was made.
    Granted {
        /// The lease.
        lease: i64,
    },
    /// The result of a renewal.
    Renewed {
        /// False if there is no such lease any more.
        lasts: bool,
    },
    /// The lease has ended.
    Revoked,
    /// Keys in their order.
    Range {
        /// The keys.
        pairs: Vec<Pair>,
        /// True if there are more keys behind them.
        more: bool,
    },
    /// The result of a [`Txn`].
    Txn {
        /// True if all conditions held.
        held: bool,
        /// The revision of the store after it.
        revision: i64,
        /// The keys that were read.
        pairs: Vec<Pair>,
    },
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
    /// The revision of the store at which the key was created.
    pub created: i64,
    /// The lease of the key; 0 if it has none.
    pub lease: i64,
}

/// A connection to the store.
pub trait Kv: Debug + Send + 'static {
    /// Sends a request and waits for the answer, for at most `within`.
    ///
    /// # Errors
    /// Fails if there is no answer. Then the request may have had its effect, may have it later, or never.
    fn ask(&mut self, request: &Request, within: Duration) -> Result<Answer, SaveError>;

    /// Returns another connection to the same store. It is made with its first request.
    fn another(&self) -> Box<dyn Kv>;
}

/// Returns the end of the keys that begin with `prefix`.
#[must_use]
pub(super) fn end_of(prefix: &str) -> String {
    // All keys begin with a word and a slash, so the last character of a prefix is a slash.
    let stem = prefix.strip_suffix('/').unwrap_or(prefix);
    format!("{stem}0")
}

/// The keys of a group of managers.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// The key that the leader holds.
    pub(super) leader: String,
    /// The key with the number of the last change.
    pub(super) sequence: String,
    /// The key that exists while a backup is restored.
    pub(super) unfinished: String,
    /// The beginning of the keys of entries.
    pub(super) entries: String,
    /// The beginning of the keys of pieces of long values.
    pub(super) pieces: String,
}

impl Keys {
    /// Returns the keys of the group with this prefix.
    pub(super) fn of(prefix: &str) -> Self {
        let prefix = prefix.trim_end_matches('/');
        let key = |name: &str| format!("{prefix}/{name}");
        Self {
            leader: key("leader"),
            sequence: key("sequence"),
            unfinished: key("unfinished"),
            entries: key("entries/"),
            pieces: key("pieces/"),
        }
    }
}
