//! A backup of the manager's state: one file with all entries of the store and the cluster key.
//!
//! The first line names the format and the version of the protocol; a hash of the rest ends the file, so that
//! a file that is cut short or changed is found.

use crate::core::{Entries, Record, Saved};
use crate::daemon::ha::{Kv, State};
use crate::daemon::{SaveError, StoreError, read_directory, replace_directory};
use proto::{PROTOCOL_VERSION, ToClient};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::time::Duration;

/// The first words of a file.
const MAGIC: &str = "ferrolite backup";
/// The version of the format of the file.
const FORMAT: u16 = 1;
/// The number of bytes of the state in one message.
const PIECE: usize = 64 << 10;
/// The length of the hash at the end, in bytes.
const HASH: usize = 32;
/// The numbers that a restored manager leaves out: its former self may have used them after the backup.
const GAP: u64 = 1 << 20;
/// The time of the manager's clock that a restored manager leaves out.
const GAP_TIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// The reason why a backup cannot be used. It is one line for people.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The file is no backup, or is damaged.
    #[error("this is no whole backup: {0}")]
    Damaged(&'static str),
    /// A newer manager has made the file.
    #[error("the backup is of a newer manager: it has {what} {theirs}, and this one reads up to {ours}")]
    Newer {
        /// The kind of the version.
        what: &'static str,
        /// The version of the file.
        theirs: u16,
        /// The version of this manager.
        ours: u16,
    },
    /// The state cannot be read or replaced.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is a state in the store that several managers share, which may not be replaced.
    #[error("there is a state below {0}: --force replaces it")]
    NotEmpty(String),
    /// The store that several managers share cannot be used.
    #[error("cannot replace the state that the managers share: {0}")]
    Shared(SaveError),
}

/// A backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    entries: Entries,
    /// The text of the key file, if it holds the whole cluster key.
    pub key: Option<String>,
}

/// Returns the messages with a state.
pub(crate) fn messages(entries: &Entries) -> Vec<ToClient> {
    let bytes = proto::encode(entries);
    let count = bytes.len().div_ceil(PIECE).max(1);
    let mut pieces: Vec<_> = bytes.chunks(PIECE).map(<[u8]>::to_vec).collect();
    pieces.resize(count, Vec::new());
    let message = |(n, bytes)| ToClient::Backup { bytes, more: n + 1 < count };
    pieces.into_iter().enumerate().map(message).collect()
}

impl Backup {
    /// Makes a backup of the bytes of all [`ToClient::Backup`] messages.
    ///
    /// # Errors
    /// Fails if the bytes are no state.
    pub fn received(bytes: &[u8]) -> Result<Self, BackupError> {
        let entries = proto::decode(bytes).map_err(|_| BackupError::Damaged("the manager sent no state"))?;
        Ok(Self { entries, key: None })
    }

    /// Reads the state in a directory that no manager uses.
    ///
    /// # Errors
    /// Fails if there is no state, or if it cannot be read.
    pub fn of_directory(directory: &Path) -> Result<Self, BackupError> {
        Ok(Self { entries: read_directory(directory)?, key: None })
    }

    /// Returns the bytes of the file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{MAGIC} {FORMAT} {PROTOCOL_VERSION}\n").into_bytes();
        bytes.extend(proto::encode(self));
        let hash = Sha256::digest(&bytes);
        bytes.extend(hash);
        bytes
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Fails if the bytes are no whole backup, or that of a newer manager.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BackupError> {
        let damaged = BackupError::Damaged;
        let end = bytes.iter().position(|&byte| byte == b'\n').ok_or(damaged("it has no first line"))?;
        let (first, rest) = bytes.split_at(end + 1);
        let first = std::str::from_utf8(first).map_err(|_| damaged("its first line is no text"))?;
        let words = first.trim_end().strip_prefix(MAGIC).ok_or(damaged("it does not begin like one"))?;
        let mut versions = words.split_ascii_whitespace().map(str::parse::<u16>);
        let (Some(Ok(format)), Some(Ok(protocol)), None) =
            (versions.next(), versions.next(), versions.next())
        else {
            return Err(damaged("its first line has no versions"));
        };
        for (what, theirs, ours) in [("format", format, FORMAT), ("protocol", protocol, PROTOCOL_VERSION)] {
            if theirs > ours {
                return Err(BackupError::Newer { what, theirs, ours });
            }
        }
        let content = rest.len().checked_sub(HASH).and_then(|length| rest.get(..length));
        let content = content.ok_or(damaged("it is too short"))?;
        let hashed = bytes.len().checked_sub(HASH).and_then(|length| bytes.split_at_checked(length));
        let (body, hash) = hashed.ok_or(damaged("it is too short"))?;
        if Sha256::digest(body)[..] != *hash {
            return Err(damaged("its hash is wrong"));
        }
        proto::decode(content).map_err(|_| damaged("its content cannot be read"))
    }

    /// Replaces the state in a directory that no manager uses. The manager that starts with it uses no number
    /// that its former self may have used after the backup.
    ///
    /// # Errors
    /// Fails if the state cannot be written, or if there is one and `force` is not set.
    pub fn restore(&self, directory: &Path, force: bool) -> Result<(), BackupError> {
        Ok(replace_directory(directory, &self.continued(), force)?)
    }

    /// Does the same to the state that several managers share, none of which runs.
    ///
    /// # Errors
    /// Fails if the store does not answer, if a manager leads, or if there is a state and `force` is not set.
    pub fn restore_shared(&self, store: Box<dyn Kv>, prefix: &str, force: bool) -> Result<(), BackupError> {
        match State::replace(store, prefix, &self.continued(), force) {
            Ok(true) => Ok(()),
            Ok(false) => Err(BackupError::NotEmpty(prefix.into())),
            Err(error) => Err(BackupError::Shared(error)),
        }
    }

    /// Returns the entries, whose numbers continue behind a gap.
    fn continued(&self) -> Entries {
        let mut entries = self.entries.clone();
        for change in Saved::of(&entries).beyond(GAP, GAP_TIME).iter().flat_map(Record::changes) {
            if let Some(value) = change.value {
                entries.insert(change.key, value);
            }
        }
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup() -> Backup {
        let entries = Record::Epoch(7).changes().into_iter().filter_map(|c| Some((c.key, c.value?)));
        Backup { entries: entries.collect(), key: Some("k".into()) }
    }

    #[test]
    fn a_file_is_whole_or_refused() {
        let bytes = backup().to_bytes();
        assert_eq!(Backup::from_bytes(&bytes).unwrap(), backup());
        for length in 0..bytes.len() {
            assert!(Backup::from_bytes(&bytes[..length]).is_err(), "{length} bytes");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Backup::from_bytes(&changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_newer_file_is_refused_as_that() {
        let text = format!("{MAGIC} {FORMAT} {}\nx", PROTOCOL_VERSION + 1);
        let error = Backup::from_bytes(text.as_bytes()).unwrap_err();
        assert!(matches!(error, BackupError::Newer { what: "protocol", .. }), "{error}");
    }

    #[test]
    fn a_long_state_comes_in_pieces() {
        let entries: Entries = (0..3).map(|n| (format!("x/{n}"), vec![7; PIECE])).collect();
        let messages = messages(&entries);
        let mut bytes = Vec::new();
        for (n, message) in messages.iter().enumerate() {
            let ToClient::Backup { bytes: piece, more } = message else { panic!("{message:?}") };
            assert_eq!(*more, n + 1 < messages.len());
            bytes.extend(piece);
        }
        assert_eq!(Backup::received(&bytes).unwrap().entries, entries);
        assert_eq!(super::messages(&Entries::new()).len(), 1);
    }
}
