//! The errors that applications see.

use alloc::string::String;
use proto::NodeId;
use serde::{Deserialize, Serialize};

/// The reason for which an operation failed.
///
/// All errors mean that the operation had no effect, with these exceptions. After
/// [`Unknown`](Self::Unknown) and [`LinkDown`](Self::LinkDown) it may have had its effect, or a part of it.
/// After [`NodeDown`](Self::NodeDown), [`Freed`](Self::Freed), [`Permission`](Self::Permission) and
/// [`Refused`](Self::Refused) a memset, or a write of several chunks or pieces, may have been done in part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// The deadline passed before the operation was issued, or the operation only reads.
    #[error("deadline passed before the operation took effect")]
    Deadline,
    /// The operation was issued and its outcome is not known: it may have happened, and may still happen. A
    /// write or an atomic may still happen until the transport gives it up, seconds later, and both ends of
    /// its connection have been reset: [`Lite::settled`](crate::Lite::settled) waits for that, and so does
    /// the release of a lock that was held meanwhile. The handler of a call may still run to its end.
    #[error("the operation may or may not have happened, or may still happen")]
    Unknown,
    /// The node has left the cluster or is declared dead.
    #[error("{0} is down")]
    NodeDown(NodeId),
    /// No node with that number has ever been seen.
    #[error("no such node")]
    NoSuchNode,
    /// Nothing is published under the requested name.
    #[error("no such name")]
    NoSuchName,
    /// The name is in use already.
    #[error("the name is taken")]
    NameTaken,
    /// The node serves no function with the requested id.
    #[error("no such function")]
    NoSuchFunction,
    /// The region does not grant the required right, or the handle does not have it.
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
    /// The memory asked for is not free.
    #[error("no memory: {asked} bytes asked, {free} can be had")]
    NoMemory {
        /// The length of the request, in bytes.
        asked: u64,
        /// The number of bytes that could be had, fewer than asked: all free memory; if the memory must be
        /// contiguous, the longest free run; if the free memory is in too many pieces, the part that fits
        /// in the pieces a region may have.
        free: u64,
    },
    /// A request or reply is longer than its receiver accepts.
    #[error("too large: at most {max} bytes")]
    TooLarge {
        /// The receiver's limit, in bytes.
        max: u64,
    },
    /// This node and the peer have no link kind in common.
    #[error("no link kind in common with {0}")]
    NoSharedLink(NodeId),
    /// This node is no longer a member: it has left, or the manager has ended its membership or was silent
    /// for too long.
    #[error("this node has lost its membership")]
    LinkDown,
    /// The other node, the directory or the RNIC refused, for the reason that the text gives.
    #[error("refused: {0}")]
    Refused(String),
}
