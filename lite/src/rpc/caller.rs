//! The peers that call functions of this node.

use super::Rpc;
use crate::channel::Channel;
use crate::transport::conn::Conn;
use alloc::sync::Arc;

/// A peer that calls functions of this node over one shard. The poller of the shard makes it and clones only
/// that: the references that a call keeps are counted by no other core.
pub(crate) struct Caller {
    pub(crate) node: Arc<Rpc>,
    pub(crate) conn: Arc<Conn>,
    pub(crate) channel: Arc<Channel>,
}

impl Caller {
    /// Returns the peer of a connection as a shard sees it; `None` if the connection has no channel for it.
    pub(crate) fn new(node: &Arc<Rpc>, conn: Arc<Conn>, shard: usize) -> Option<Self> {
        let channel = conn.channels.as_ref()?.get(shard)?.clone();
        Some(Self { node: node.clone(), conn, channel })
    }
}
