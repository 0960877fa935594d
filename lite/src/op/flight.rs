//! One work request under way, as the task that issued it sees it.

use super::{OpId, Stands};
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

    /// One that has not been posted yet.
    pub(crate) fn grounded(node: &'n Node) -> Self {
        Self { node, id: None }
    }

    pub(super) fn node(&self) -> &'n Node {
        self.node
    }

    /// It has been posted, if it has an id.
    pub(crate) fn is_posted(&self) -> bool {
        self.id.is_some()
    }

    /// It has been posted as `id`.
    pub(crate) fn depart(&mut self, id: OpId) {
        self.id = Some(id);
    }

    /// Ready when it has ended, with `None` when its time has.
    #[inline]
    pub(crate) fn poll_landed(&mut self, cx: &Context<'_>) -> Poll<Option<(Status, Lent<'n>)>> {
        let node = self.node;
        let Some(id) = self.id else { return Poll::Pending };
        let polled = node.ops.lock().poll(id, cx);
        polled.map(|stands| match stands {
            Stands::Late => None,
            Stands::Ended(status, bounce) => {
                self.id = None;
                if bounce.is_none() {
                    // With a buffer, the slot's release is announced together with the buffer's.
                    node.resources.wake_all();
                }
                Some((status, Lent { node, bounce }))
            }
        })
    }
}

impl<'n> Future for Flight<'n> {
    type Output = (Status, Lent<'n>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.poll_landed(cx) {
            Poll::Ready(Some(landed)) => Poll::Ready(landed),
            // What is polled like this has no time of its own.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        self.node.ops.lock().abandon(id);
        self.node.resources.wake_all();
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
            self.node.ops.lock().give(Some(bounce));
            self.node.resources.wake_all();
        }
    }
}
