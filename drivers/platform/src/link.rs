//! The connection to the cluster manager, as whole messages.

use crate::Instant;
use alloc::vec::Vec;
use core::task::{Context, Poll};

/// The control connection has ended; it does not come back (a node that wants back joins anew).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("control connection to the manager is down")]
pub struct LinkDown;

/// A connected, authenticated, encrypted channel of whole messages to the manager, in order and without loss.
///
/// The platform sends heartbeats on it by itself, from the poller, so that a lease outlives a task that computes.
pub trait ControlLink: Send + Sync {
    /// Queues one message. Pending while the link's buffer is full.
    fn poll_send(&self, cx: &mut Context<'_>, message: &[u8]) -> Poll<Result<(), LinkDown>>;

    /// The next message received.
    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, LinkDown>>;

    /// Until when this node's membership holds for certain: counted from the sending of the last heartbeat whose
    /// acknowledgement [`poll_recv`](Self::poll_recv) has given.
    fn lease_until(&self) -> Instant;
}
