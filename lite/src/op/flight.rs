//! One work request under way, as the task that issued it sees it.

use super::OpId;
use crate::bounce::Bounce;
use crate::node::Node;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use platform::IoAddr;
use verbs::Status;

/// Gives the status and the bounce buffer when the work request has ended. Dropped before, it leaves both in quarantine.
pub(crate) struct Flight<'n> {
    node: &'n Node,
    id: Option<OpId>,
}

impl<'n> Flight<'n> {
    pub(crate) fn new(node: &'n Node, id: OpId) -> Self {
        Self { node, id: Some(id) }
    }
}

impl<'n> Future for Flight<'n> {
    type Output = (Status, Lent<'n>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let node = self.node;
        let Some(id) = self.id else { return Poll::Pending };
        let polled = node.ops.lock().poll(id, cx);
        polled.map(|(status, bounce)| {
            self.id = None;
            if bounce.is_none() {
                // With a buffer, the slot's release is announced together with the buffer's.
                node.resources.wake_all();
            }
            (status, Lent { node, bounce })
        })
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let bounce = self.node.ops.lock().abandon(id);
        self.node.give_back(bounce);
    }
}

/// A bounce buffer that is no longer on the wire; goes back to the pool when dropped.
pub(crate) struct Lent<'n> {
    node: &'n Node,
    bounce: Option<Bounce>,
}

impl Lent<'_> {
    /// Where it lies; `None` after an inline operation.
    pub(crate) fn addr(&self) -> Option<IoAddr> {
        self.bounce.as_ref().map(|b| b.addr)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(bounce) = self.bounce.take() {
            self.node.give_back(Some(bounce));
        }
    }
}
