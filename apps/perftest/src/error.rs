//! Errors that end a test.

use alloc::string::String;
use platform::{MemoryError, NetworkError};
use verbs::{Status, VerbsError, WorkKind};

/// The reason for which a test ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The command line is wrong.
    #[error("{0}")]
    Options(String),
    /// The options exceed the limits of this RNIC.
    #[error("{0}")]
    Limit(String),
    /// The exchange over TCP failed.
    #[error("{during}: {error}")]
    Exchange {
        /// The step that failed.
        during: &'static str,
        /// The error.
        error: NetworkError,
    },
    /// The peer sent a malformed message.
    #[error("the peer's {0} cannot be read")]
    Malformed(&'static str),
    /// The peer's version is too old.
    #[error("the peer is of a perftest before 5.70")]
    Version,
    /// The peer's address cannot be resolved.
    #[error("nobody answers for the peer's GID {0}")]
    Unreachable(verbs::Gid),
    /// The RNIC refused a call.
    #[error("{during}: {error}")]
    Verbs {
        /// The step that failed.
        during: &'static str,
        /// The error.
        error: VerbsError,
    },
    /// A work request failed.
    #[error("a {0:?} ended with {1:?}")]
    Completion(WorkKind, Status),
    /// Nothing has happened for a long time.
    #[error("nothing has come for {0} s")]
    Stalled(u64),
    /// The buffers do not fit into memory.
    #[error("too little memory: the buffers need {0} MB")]
    OutOfMemory(u64),
    /// An access to a buffer failed.
    #[error("memory: {0}")]
    Memory(#[from] MemoryError),
    /// The result of atomics is wrong.
    #[error("{0}")]
    Content(String),
    /// Another test runs on this node; a node runs one at a time.
    #[error("another test runs on this node")]
    Busy,
}

/// Adds the failed step to an error.
pub(crate) trait During<T> {
    fn during(self, during: &'static str) -> Result<T, Error>;
}

impl<T> During<T> for Result<T, NetworkError> {
    fn during(self, during: &'static str) -> Result<T, Error> {
        self.map_err(|error| Error::Exchange { during, error })
    }
}

impl<T> During<T> for Result<T, VerbsError> {
    fn during(self, during: &'static str) -> Result<T, Error> {
        self.map_err(|error| Error::Verbs { during, error })
    }
}

impl<T> During<T> for Result<T, (usize, VerbsError)> {
    fn during(self, during: &'static str) -> Result<T, Error> {
        self.map_err(|(_, error)| Error::Verbs { during, error })
    }
}
