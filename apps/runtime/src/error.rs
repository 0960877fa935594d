//! Errors of a job on a node.

use alloc::string::String;

/// The reason for which a node could not accept or finish its part of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The job cannot run as requested; the text says why.
    #[error("{0}")]
    Refused(String),
    /// LITE reports an error, such as a node's death or a missed deadline.
    #[error("{during}: {error}")]
    Lite {
        /// The step of the job that failed.
        during: &'static str,
        /// The error.
        error: lite::Error,
    },
    /// The node has too little memory for its part of the job.
    #[error("too little memory: needs {} MB, has {} MB", mb_up(*.needed), *.has / 1_000_000)]
    TooLittleMemory {
        /// The number of bytes that the part of the job needs.
        needed: u64,
        /// Bytes that are free.
        has: u64,
    },
    /// An allocation failed while the job ran.
    #[error("too little memory: needs {} MB more at once, has {} MB in all", mb_up(*.wanted), *.has / 1_000_000)]
    OutOfMemory {
        /// The length of the allocation that failed, in bytes.
        wanted: u64,
        /// Bytes that are free.
        has: u64,
    },
    /// Another node's data is malformed.
    #[error("malformed data from rank {rank}")]
    Malformed {
        /// The rank of that node in the job.
        rank: usize,
    },
    /// The manager has not acknowledged output in time.
    #[error("the manager took no output for {seconds} s")]
    Stalled {
        /// The length of the wait, in seconds.
        seconds: u64,
    },
    /// The job was cancelled.
    #[error("cancelled")]
    Cancelled,
}

/// Converts bytes to MB, rounded up.
fn mb_up(bytes: u64) -> u64 {
    bytes.div_ceil(1_000_000)
}

/// Adds the failed step to an error of LITE.
pub(crate) trait During<T> {
    fn during(self, during: &'static str) -> Result<T, JobError>;
}

impl<T> During<T> for Result<T, lite::Error> {
    fn during(self, during: &'static str) -> Result<T, JobError> {
        self.map_err(|error| JobError::Lite { during, error })
    }
}
