//! Why a job fails on a node.

use alloc::string::String;

/// Why a node could not take or finish its part of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The job asks for something that cannot be.
    #[error("{0}")]
    Refused(String),
    /// LITE reports an error: a node's death, a deadline.
    #[error("{during}: {error}")]
    Lite {
        /// What was being done.
        during: &'static str,
        /// What LITE says.
        error: lite::Error,
    },
    /// The node has too little memory for its part.
    #[error("too little memory: needs {} MB, has {} MB", mb_up(*.needed), *.has / 1_000_000)]
    TooLittleMemory {
        /// Bytes that the part takes.
        needed: u64,
        /// Bytes that are free.
        has: u64,
    },
    /// Memory ran out on the way.
    #[error("too little memory: needs {} MB more at once, has {} MB in all", mb_up(*.wanted), *.has / 1_000_000)]
    OutOfMemory {
        /// Bytes of the allocation that failed.
        wanted: u64,
        /// Bytes that are free.
        has: u64,
    },
    /// Another node's data is not what it should be.
    #[error("malformed data from rank {rank}")]
    Malformed {
        /// The rank of the node in the job.
        rank: usize,
    },
    /// The manager acknowledges no output.
    #[error("the manager took no output for {seconds} s")]
    Stalled {
        /// How long.
        seconds: u64,
    },
    /// The job was cancelled.
    #[error("cancelled")]
    Cancelled,
}

/// Bytes in MB, rounded up.
fn mb_up(bytes: u64) -> u64 {
    bytes.div_ceil(1_000_000)
}

/// Says what was being done when LITE failed.
pub(crate) trait During<T> {
    fn during(self, during: &'static str) -> Result<T, JobError>;
}

impl<T> During<T> for Result<T, lite::Error> {
    fn during(self, during: &'static str) -> Result<T, JobError> {
        self.map_err(|error| JobError::Lite { during, error })
    }
}
