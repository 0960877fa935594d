//! One work request in flight, as the task that issued it sees it.

use super::status::OpId;
use super::status::Stage;
use super::transport::Transport;
use crate::Error;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use verbs::Status;

/// Resolves to the waker of the task that awaits it.
pub(crate) struct TaskWaker;

impl Future for TaskWaker {
    type Output = Waker;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Waker> {
        Poll::Ready(cx.waker().clone())
    }
}

/// Suspends the task until something wakes it that has its waker.
#[derive(Default)]
pub(crate) struct Rest(bool);

impl Future for Rest {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if core::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// The end of the wait for a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// Success.
    Done,
    /// Failure, with a [status](InFlight::status).
    Failed,
    /// The deadline has passed while it is in flight.
    Late,
}

/// A work request, and its bounce buffer, if it has one. If it is dropped before its end, both stay in
/// quarantine until its completion; afterwards others may use them.
pub(crate) struct InFlight<'n> {
    node: &'n Transport,
    /// `None` once nothing is held any more.
    id: Option<OpId>,
}

impl<'n> InFlight<'n> {
    #[inline]
    pub(crate) fn new(node: &'n Transport, id: OpId) -> Self {
        Self { node, id: Some(id) }
    }

    /// Copies the result of a read. Call only after the future has resolved to [`Ended::Done`].
    #[inline]
    pub(crate) fn read(&self, into: &mut [u8]) -> Result<(), Error> {
        let place = self.id.map(|id| self.node.ends.place(id)).ok_or(Error::Unknown)?;
        self.node.buffers.read(place, into).map_err(|_| Error::Unknown)
    }

    /// Returns the status of the completion.
    pub(crate) fn status(&self) -> Status {
        self.id.map_or(Status::Success, |id| self.node.ops.lock().status(id))
    }
}

impl Transport {
    /// Polls a work request for which a task waits.
    #[inline]
    pub(crate) fn poll_op(&self, id: OpId, cx: &Context<'_>) -> Poll<(Ended, Option<OpId>)> {
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

    /// Ends the interest in a work request: no task waits for it or needs its result any more.
    #[inline]
    pub(crate) fn let_go(&self, id: OpId) {
        self.ops.lock().let_go(id);
        self.resources.wake_all();
    }
}

impl Future for InFlight<'_> {
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

impl Drop for InFlight<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.node.let_go(id);
        }
    }
}
