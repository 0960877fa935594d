//! Internal calls that must succeed: the undoing of requests whose answer was lost, and the release of
//! resources.

use super::Rpc;
use super::internal::InternalRequest;
use crate::Error;
use crate::base::member::MemberId;
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use crate::transport::transfer::RECONNECT_PAUSE;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::time::Duration;
use platform::Instant;

/// The time limit of one attempt.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Returns true if an outcome is final: the request is done or refused. A node that is short of memory or
/// permits may serve it later.
fn stands<T>(outcome: &Result<Result<T, Error>, Error>) -> bool {
    !matches!(outcome, Err(_) | Ok(Err(Error::NoMemory { .. })))
}

impl Rpc {
    /// Repeats a request that may be served twice after each broken connection, until `deadline`. Returns
    /// `Unknown` for any failure of the last attempt if an earlier one may have arrived.
    pub(crate) async fn request_until<R: InternalRequest>(
        self: &Arc<Self>,
        whom: MemberId,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Response, Error> {
        let mut perhaps_heard = false;
        loop {
            match self.exchange(whom, request, deadline).await {
                Ok(answer) => return answer,
                Err(Error::Unknown) if self.local.platform.now() + RECONNECT_PAUSE < deadline => {
                    sometimes!("a question was asked again");
                    perhaps_heard = true;
                    self.local.timers.until(self.local.platform.now() + RECONNECT_PAUSE).await;
                }
                // Either the called incarnation or this one has ended.
                Err(error @ (Error::NodeDown(_) | Error::LinkDown)) => return Err(error),
                Err(error) => return Err(if perhaps_heard { Error::Unknown } else { error }),
            }
        }
    }

    /// Asks once, by `deadline`. Returns the answer, and whether it is final: without a final one the request
    /// must be repeated.
    pub(crate) async fn request_once<R: InternalRequest>(
        self: &Arc<Self>,
        whom: MemberId,
        request: &R,
        deadline: Instant,
    ) -> (Result<R::Response, Error>, bool) {
        let outcome = self.exchange(whom, request, deadline).await;
        let is_final = stands(&outcome);
        (outcome.flatten(), is_final)
    }

    /// Asks an incarnation of a node again and again until it has answered or has ended.
    pub(crate) async fn retry_until_done<R: InternalRequest>(self: &Arc<Self>, whom: MemberId, request: &R) {
        let is_there =
            || whom == (self.local.me, self.local.incarnation) || self.incarnation_of(whom.0) == Some(whom.1);
        while is_there() && !self.local.is_fenced() {
            let deadline = self.local.platform.now() + ATTEMPT;
            if stands(&self.exchange(whom, request, deadline).await) {
                return;
            }
            sometimes!("what must be heard was said again");
            self.local.timers.until(self.local.platform.now() + RECONNECT_PAUSE).await;
        }
    }

    /// Runs [`retry_until_done`](Self::retry_until_done) in a task of its own.
    pub(crate) fn spawn_retry<R: InternalRequest>(self: &Arc<Self>, whom: MemberId, request: R) {
        let node = self.clone();
        self.local.platform.spawn(
            "lite-retry_until_done",
            Box::pin(async move { node.retry_until_done(whom, &request).await }),
        );
    }
}

/// Asks a node to undo something if this is dropped while armed: a future that is dropped, or that ends
/// without the outcome of its request, leaves nothing behind.
pub(crate) struct Rollback<'a, R: InternalRequest> {
    node: &'a Arc<Rpc>,
    whom: MemberId,
    request: Option<R>,
}

impl<'a, R: InternalRequest> Rollback<'a, R> {
    /// Makes an armed `Rollback`. Must be made before the request is sent.
    pub(crate) fn new(node: &'a Arc<Rpc>, whom: MemberId, request: R) -> Self {
        Self { node, whom, request: Some(request) }
    }

    /// Cancels the rollback, because the outcome of the request is known.
    pub(crate) fn disarm(mut self) {
        self.request = None;
    }
}

impl<R: InternalRequest> Drop for Rollback<'_, R> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take().filter(|_| !planted(Bug::UndoForgotten)) {
            self.node.spawn_retry(self.whom, request);
        }
    }
}
