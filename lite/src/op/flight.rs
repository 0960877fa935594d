//! One work request under way, as the task that issued it sees it.

use super::OpId;
use super::ends::Stage;
use crate::Error;
use crate::node::Node;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use verbs::Status;

/// The waker of the task that awaits this.
pub(crate) struct TaskWaker;

impl Future for TaskWaker {
    type Output = Waker;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Waker> {
        Poll::Ready(cx.waker().clone())
    }
}

/// Lets the task rest until something wakes it that has its waker.
#[derive(Default)]
pub(crate) struct Rest(bool);

impl Future for Rest {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if core::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// How the wait for a work request has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// It has succeeded.
    Done,
    /// It has [failed](Flight::status).
    Failed,
    /// Its time is over while it is under way.
    Late,
}

/// A work request, and its bounce buffer, if it has one. Dropped before it has ended, it leaves both in quarantine; after that
/// others may have them.
pub(crate) struct Flight<'n> {
    node: &'n Node,
    /// `None` once nothing is held any more.
    id: Option<OpId>,
}

impl<'n> Flight<'n> {
    #[inline]
    pub(crate) fn new(node: &'n Node, id: OpId) -> Self {
        Self { node, id: Some(id) }
    }

    /// Copies what it has brought, if it has [`Ended`] well and brings something.
    #[inline]
    pub(crate) fn read(&self, into: &mut [u8]) -> Result<(), Error> {
        let place = self.id.map(|id| self.node.ends.place(id)).ok_or(Error::Unknown)?;
        self.node.buffers.read(place, into).map_err(|_| Error::Unknown)
    }

    /// What it has come to.
    pub(crate) fn status(&self) -> Status {
        self.id.map_or(Status::Success, |id| self.node.ops.lock().status(id))
    }
}

impl Node {
    /// How a work request stands that somebody waits for.
    #[inline]
    pub(super) fn poll_op(&self, id: OpId, cx: &Context<'_>) -> Poll<(Ended, Option<OpId>)> {
        let stage = match self.ends.look(id) {
            Some(Stage::OnWire) if self.ops.lock().wait(id, cx) => return Poll::Pending,
            Some(Stage::OnWire) => self.ends.look(id),
            stage => stage,
        };
        Poll::Ready(match stage {
            None => (Ended::Done, None),
            Some(Stage::Done) => (Ended::Done, Some(id)),
            Some(Stage::Failed) => (Ended::Failed, Some(id)),
            Some(Stage::Late | Stage::OnWire) => (Ended::Late, Some(id)),
        })
    }

    /// Nobody waits for a work request any more, or needs what it has brought.
    #[inline]
    pub(super) fn let_go(&self, id: OpId) {
        self.ops.lock().let_go(id);
        self.resources.wake_all();
    }
}

impl Future for Flight<'_> {
    type Output = Ended;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        let Some(id) = self.id else { return Poll::Ready(Ended::Done) };
        self.node.poll_op(id, cx).map(|(ended, id)| {
            self.id = id;
            ended
        })
    }
}

impl Drop for Flight<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.node.let_go(id);
        }
    }
}
