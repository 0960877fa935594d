//! The memory in which a node receives RPC messages from a peer.

use crate::base::bounce::Run;
use alloc::sync::Arc;
use platform::IoAddr;
use serde::{Deserialize, Serialize};

/// The memory of an area: the ring for the peer's requests, and the slots for its replies.
pub(crate) type RpcMemory = Arc<(Run, Run)>;

/// The memory in which a node receives RPC messages from one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RpcArea {
    /// The address of the ring for requests.
    pub(crate) ring: IoAddr,
    /// The length of the ring in bytes, a power of two.
    pub(crate) ring_len: u32,
    /// The address of the slots for replies, which are contiguous.
    pub(crate) slots: IoAddr,
    /// The length of a slot, in bytes.
    pub(crate) slot_len: u32,
    /// The number of slots.
    pub(crate) slot_count: u32,
}
