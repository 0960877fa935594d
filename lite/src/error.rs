//! What can go wrong, as applications see it.

use alloc::string::String;
use proto::NodeId;
use serde::{Deserialize, Serialize};

/// Why an operation failed.
///
/// All but [`Unknown`](Self::Unknown) and, for writes of several chunks and for memset, [`NodeDown`](Self::NodeDown)
/// and [`LinkDown`](Self::LinkDown) mean that the operation had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// The deadline passed before the operation was issued, or it only read.
    #[error("deadline passed before the operation took effect")]
    Deadline,
    /// The operation was issued, and its outcome was lost: it may or may not have happened.
    #[error("the operation may or may not have happened")]
    Unknown,
    /// The node has left the cluster or is declared dead.
    #[error("{0} is down")]
    NodeDown(NodeId),
    /// No node of that id has ever been seen.
    #[error("no such node")]
    NoSuchNode,
    /// Nothing is published under that name.
    #[error("no such name")]
    NoSuchName,
    /// Something is published under that name already.
    #[error("the name is taken")]
    NameTaken,
    /// The node serves no function of that id.
    #[error("no such function")]
    NoSuchFunction,
    /// The region does not grant that right, or the handle does not have it.
    #[error("permission denied")]
    Permission,
    /// Offset and length reach beyond the region.
    #[error("out of the region's bounds")]
    OutOfBounds,
    /// An atomic's offset is not a multiple of 8.
    #[error("atomic offset is not a multiple of 8")]
    Misaligned,
    /// The region has been freed.
    #[error("the region has been freed")]
    Freed,
    /// So much memory is not free.
    #[error("no memory: {asked} bytes asked, {free} can be had")]
    NoMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that can be had, fewer than asked: all that are free; where they must be contiguous, the longest run; of memory
        /// in too many pieces, what lies in as many as a region may have.
        free: u64,
    },
    /// A request or reply is longer than its receiver takes.
    #[error("too large: at most {max} bytes")]
    TooLarge {
        /// The most it takes, in bytes.
        max: u64,
    },
    /// No link kind is spoken by both nodes.
    #[error("no link kind in common with {0}")]
    NoSharedLink(NodeId),
    /// This node is no longer a member: its control connection or its lease has ended.
    #[error("this node has lost its membership")]
    LinkDown,
    /// The other side, the directory or the RNIC refused, and says why.
    #[error("refused: {0}")]
    Refused(String),
}
