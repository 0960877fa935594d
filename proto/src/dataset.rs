//! Datasets: outputs of jobs that stay in the memory of the nodes, as input of later jobs.

use crate::{JobId, NodeId, Reason, check_text};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The maximum length of a dataset's name, in bytes.
const MAX_NAME: usize = 64;

/// A dataset that is part of a job's input. Its bytes are those of its pieces, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    /// The name.
    pub name: String,
    /// The job whose output it is.
    pub job: JobId,
    /// The pieces in order: the node that holds the piece, and its length in bytes. The pieces of a node are
    /// numbered from 0 in this order.
    pub pieces: Vec<(NodeId, u64)>,
}

impl Dataset {
    /// The text before the name of a dataset where it stands for a file.
    pub const SCHEME: &str = "lite:";
    /// The maximum number of pieces that a node holds of a dataset.
    pub const MAX_PIECES: usize = 256;

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.pieces.iter().fold(0, |sum, (_, len)| sum.saturating_add(*len))
    }

    /// Returns true if the dataset has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks a name: 1 to 64 bytes, printable, without spaces.
    ///
    /// # Errors
    /// A reason for users.
    pub fn check_name(name: &str) -> Result<(), Reason> {
        check_text("the name of a dataset", name, MAX_NAME)?;
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(format!(
                "{name:?} is no name of a dataset: want 1 to {MAX_NAME} bytes without spaces"
            ));
        }
        Ok(())
    }
}

/// A dataset as the command line shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetStatus {
    /// The name.
    pub name: String,
    /// The number of bytes.
    pub bytes: u64,
    /// The application whose output it is.
    pub app: String,
    /// The job whose output it is.
    pub job: JobId,
    /// The nodes that hold a part.
    pub nodes: Vec<NodeId>,
    /// The time since the end of that job, in milliseconds.
    pub age_ms: u64,
}
