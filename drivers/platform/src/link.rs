//! The control connection to the cluster manager, as whole messages.

use crate::Instant;
use alloc::vec::Vec;
use core::task::{Context, Poll};

/// The control connection has ended for ever: the node has left, or cannot resume. A node that wants to be a
/// member again joins again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("control connection to the manager is down")]
pub struct LinkDown;

/// A connected, authenticated, encrypted channel to the manager, which delivers whole messages in order and
/// without loss.
///
/// The platform's poller sends heartbeats on it by itself, so that a task that computes for long does not
/// cost the node its lease.
pub trait ControlLink: Send + Sync {
    /// Queues one message. Pending while the buffer of the connection is full.
    fn poll_send(&self, cx: &mut Context<'_>, message: &[u8]) -> Poll<Result<(), LinkDown>>;

    /// The next message received.
    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, LinkDown>>;

    /// Returns the time until which this node is a member for certain. It counts from the
    /// transmission of the last heartbeat whose acknowledgement [`poll_recv`](Self::poll_recv) has
    /// returned; before the first one, from the transmission of the request to join.
    fn lease_until(&self) -> Instant;

    /// Returns the version of the protocol that this node and the manager have agreed on at the join. The
    /// manager understands no message of a later one.
    fn version(&self) -> u16;

    /// Notes that LITE has ended the membership and has passed its last message to
    /// [`poll_send`](Self::poll_send). The link sends what is queued, and must not resume the membership on
    /// another connection: if the last message is lost, the manager learns of the end when the lease ends.
    /// A link that never resumes a membership does nothing.
    fn end(&self) {}
}
