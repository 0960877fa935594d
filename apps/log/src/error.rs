//! The errors of the log.

use crate::Position;
use lite::Error;

/// The reason for which a log could not be created, opened or managed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// LITE has failed.
    #[error(transparent)]
    Lite(#[from] Error),
    /// The options are out of range, for the reason that the text gives.
    #[error("{0}")]
    Options(&'static str),
    /// The region of that name is not a log, or is a log of another version.
    #[error("the region of that name is no log")]
    NotALog,
    /// The log has its largest number of writers already.
    #[error("the log has {max} writers already")]
    TooManyWriters {
        /// The largest number of writers.
        max: usize,
    },
    /// The log needs one more segment, for which its capacity or the memory of the segment's home is too
    /// small.
    #[error("the log is full")]
    Full,
    /// The position has been truncated.
    #[error("the position has been truncated")]
    Truncated,
    /// The position is beyond the tail of the log.
    #[error("the position is beyond the tail")]
    BeyondTail,
}

/// The reason for which a commit failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The entries are not in the log and never will be.
    #[error("not appended: {0}")]
    NotAppended(Error),
    /// The entries may be in the log, at this position and nowhere else. If they are not, they may still
    /// appear there until the position is resolved.
    #[error("the entries may or may not be at {0}")]
    Unknown(Position),
    /// The entries are longer than a commit may be. They are not in the log.
    #[error("too large: at most {max} bytes with the headers of the entries")]
    TooLarge {
        /// The length of the longest frame, in bytes.
        max: usize,
    },
    /// The log has no room. The entries are not in the log.
    #[error("the log is full")]
    Full,
}

/// The reason for which a record could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// LITE has failed.
    #[error(transparent)]
    Lite(#[from] Error),
    /// The position is not resolved yet: it is beyond the tail, or its writer has not written it yet.
    #[error("nothing is there yet")]
    NotYet,
    /// The position has been truncated.
    #[error("the position has been truncated")]
    Truncated,
    /// The position is resolved, and no record begins there.
    #[error("no record begins there")]
    NoRecord,
}

impl From<LogError> for ReadError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Lite(error) => Self::Lite(error),
            LogError::Truncated => Self::Truncated,
            _ => Self::NotYet,
        }
    }
}
