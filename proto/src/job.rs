//! Jobs: what an application declares, what a node is told, what it reports.

use crate::{JobId, NodeId, Reason, check_text};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Where the manager may cut a file into splits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CutRule {
    /// Behind any byte.
    Anywhere,
    /// Behind any byte whose bit is set (byte b: bit `b % 8` of element `b / 8`), so that no record is torn.
    After([u8; 32]),
}

impl CutRule {
    /// Cuts behind every byte for which `f` holds.
    #[must_use]
    pub fn after(f: impl Fn(u8) -> bool) -> Self {
        let mut bits = [0u8; 32];
        for b in 0..=255u8 {
            if f(b) {
                bits[usize::from(b / 8)] |= 1 << (b % 8);
            }
        }
        Self::After(bits)
    }

    /// Whether a split may end behind `byte`.
    #[must_use]
    pub fn allows(&self, byte: u8) -> bool {
        match self {
            Self::Anywhere => true,
            Self::After(bits) => bits[usize::from(byte / 8)] >> (byte % 8) & 1 != 0,
        }
    }
}

/// An application that a node has compiled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppManifest {
    /// Its name: what `--app` takes.
    pub name: String,
    /// One line for people.
    pub about: String,
    /// How its input may be cut.
    pub cut: CutRule,
}

/// A file of a job's input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    /// Its name as the user gave it.
    pub name: String,
    /// Bytes.
    pub len: u64,
}

/// A node's part in a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStart {
    /// The job.
    pub job: JobId,
    /// The application.
    pub app: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// The nodes that take part; a node's index is its rank. Rank 0 gives the output.
    pub nodes: Vec<NodeId>,
    /// All files of the input.
    pub inputs: Vec<InputFile>,
    /// An upper bound on the bytes of input that this node will get, if records are short.
    pub share: u64,
}

/// What a node says of its finished part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobReport {
    /// Counts by name, such as `words`, `distinct`, `mapped_bytes`, `reduced_keys`. The manager adds those of equal name.
    pub counts: Vec<(String, u64)>,
    /// Microseconds by phase.
    pub times_us: Vec<(String, u64)>,
}

impl JobReport {
    /// Entries of the longest list.
    pub const MAX_ENTRIES: usize = 64;
    /// Bytes of the longest name.
    pub const MAX_NAME: usize = 64;

    /// Checks a report of a node: at most [`MAX_ENTRIES`](Self::MAX_ENTRIES) counts and as many times, with printable names
    /// of at most [`MAX_NAME`](Self::MAX_NAME) bytes.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn check(&self) -> Result<(), Reason> {
        for (what, list) in [("counts", &self.counts), ("times", &self.times_us)] {
            if list.len() > Self::MAX_ENTRIES {
                return Err(format!(
                    "its report has {} {what}, and may have {}",
                    list.len(),
                    Self::MAX_ENTRIES
                ));
            }
            list.iter().try_for_each(|(name, _)| check_text("a name in its report", name, Self::MAX_NAME))?;
        }
        Ok(())
    }
}
