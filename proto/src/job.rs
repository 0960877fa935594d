//! Jobs: the declaration of an application, the start message, the report of a node.

use crate::{Dataset, JobId, NodeId, Reason, check_text};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The positions at which the manager may split a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CutRule {
    /// A split may end after any byte.
    Anywhere,
    /// After any byte whose bit is set (byte b: bit `b % 8` of element `b / 8`), so that no record is
    /// divided.
    After([u8; 32]),
}

impl CutRule {
    /// Makes a rule that allows a split after every byte for which `f` returns true.
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

    /// Returns true if a split may end after `byte`.
    #[must_use]
    pub fn allows(&self, byte: u8) -> bool {
        match self {
            Self::Anywhere => true,
            Self::After(bits) => bits[usize::from(byte / 8)] >> (byte % 8) & 1 != 0,
        }
    }
}

/// An application that is compiled into a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppManifest {
    /// The application's name, as in `--app`.
    pub name: String,
    /// A description for users, in one line.
    pub about: String,
    /// The rule by which the input of the application may be split.
    pub cut: CutRule,
}

/// An input file of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    /// The file's name, as the user gave it.
    pub name: String,
    /// The file's length, in bytes.
    pub len: u64,
}

/// The part of a node in a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStart {
    /// The job.
    pub job: JobId,
    /// The application.
    pub app: String,
    /// The arguments of the application.
    pub args: Vec<String>,
    /// The participating nodes; a node's index is its rank. Rank 0 sends the output.
    pub nodes: Vec<NodeId>,
    /// All files of the input: those that the client sends, then the datasets.
    pub inputs: Vec<InputFile>,
    /// The datasets of the input, which the nodes read from each other.
    pub datasets: Vec<Dataset>,
    /// An upper bound on the bytes of input that this node receives, if records are short.
    pub share: u64,
    /// True if the output stays on the nodes, as a dataset, and is not sent.
    pub keep: bool,
}

/// The report of a node on its completed part of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobReport {
    /// Counts by name, such as `words`, `distinct`, `mapped_bytes`, `reduced_keys`. The manager adds counts
    /// of the same name.
    pub counts: Vec<(String, u64)>,
    /// Times by phase, in microseconds.
    pub times_us: Vec<(String, u64)>,
    /// The resources that the part has used, which the runtime of the node counts: operations of LITE that
    /// the node has begun (`reads`, `writes`, `atomics`, `memsets`, `calls`, `messages`), `served` calls,
    /// `bytes_read`, `bytes_written`, and `peak_memory`, the most bytes of the node's memory in use.
    pub used: Vec<(String, u64)>,
    /// The lengths in bytes of the pieces of output that the node keeps, if the job's output is a dataset.
    pub kept: Vec<u64>,
}

/// A node's part of a job, as the node reports it after it has [resumed](crate::Resume).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobStanding {
    /// The node receives input.
    Loading,
    /// The node computes.
    Running,
    /// The node has completed its part.
    Done(JobReport),
    /// The node's part has failed.
    Failed(Reason),
}

impl JobReport {
    /// The maximum number of counts, of times, and of resources.
    pub const MAX_ENTRIES: usize = 64;
    /// The maximum length of a name, in bytes.
    pub const MAX_NAME: usize = 64;

    /// Checks the report of a node: at most [`MAX_ENTRIES`](Self::MAX_ENTRIES) counts, times and resources,
    /// with printable names of at most [`MAX_NAME`](Self::MAX_NAME) bytes.
    ///
    /// # Errors
    /// A reason for users.
    pub fn check(&self) -> Result<(), Reason> {
        for (what, list) in [("counts", &self.counts), ("times", &self.times_us), ("resources", &self.used)] {
            if list.len() > Self::MAX_ENTRIES {
                return Err(format!(
                    "its report has {} {what}, and may have {}",
                    list.len(),
                    Self::MAX_ENTRIES
                ));
            }
            list.iter().try_for_each(|(name, _)| check_text("a name in its report", name, Self::MAX_NAME))?;
        }
        if self.kept.len() > Dataset::MAX_PIECES {
            let (has, may) = (self.kept.len(), Dataset::MAX_PIECES);
            return Err(format!("it keeps {has} pieces of output, and may keep {may}"));
        }
        Ok(())
    }
}
