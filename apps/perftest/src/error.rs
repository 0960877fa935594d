//! Why a test ends without a result.

use alloc::string::String;
use platform::{MemoryError, NetworkError};
use verbs::{Status, VerbsError, WorkKind};

/// Why a test ends without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The words make no sense.
    #[error("{0}")]
    Options(String),
    /// What is asked is more than this RNIC does.
    #[error("{0}")]
    Limit(String),
    /// The exchange over TCP fails.
    #[error("{during}: {error}")]
    Exchange {
        /// What was being done.
        during: &'static str,
        /// Why it failed.
        error: NetworkError,
    },
    /// The peer says something that cannot be.
    #[error("the peer's {0} cannot be read")]
    Malformed(&'static str),
    /// The peer is of an older version.
    #[error("the peer is of a perftest before 5.70")]
    Version,
    /// The peer's port is not found.
    #[error("nobody answers for the peer's GID {0}")]
    Unreachable(verbs::Gid),
    /// The RNIC refuses.
    #[error("{during}: {error}")]
    Verbs {
        /// What was being done.
        during: &'static str,
        /// Why.
        error: VerbsError,
    },
    /// A work request fails.
    #[error("a {0:?} ended with {1:?}")]
    Completion(WorkKind, Status),
    /// Nothing has happened for a long time.
    #[error("nothing has come for {0} s")]
    Stalled(u64),
    /// No room for the buffers.
    #[error("too little memory: the buffers need {0} MB")]
    OutOfMemory(u64),
    /// A buffer is not where it should be.
    #[error("memory: {0}")]
    Memory(#[from] MemoryError),
    /// The result of atomics is wrong.
    #[error("{0}")]
    Content(String),
    /// Another test runs on this node.
    #[error("another test runs on this node")]
    Busy,
}

/// Says what was being done when something failed.
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
