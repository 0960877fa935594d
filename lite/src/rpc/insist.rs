//! Internal calls that must succeed: the undoing of requests whose answer was lost, and the release of
//! resources.

use super::internal::{Answer, Ask};
use crate::Error;
use crate::membership::Life;
use crate::node::Node;
use crate::op::RECONNECT_PAUSE;
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::time::Duration;
use platform::Instant;

/// The time limit of one attempt.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Returns true if an outcome is final: the request is done or refused. A node that is short of memory or
/// permits may serve it later.
fn stands(outcome: &Result<Result<Answer, Error>, Error>) -> bool {
    !matches!(outcome, Err(_) | Ok(Err(Error::NoMemory { .. })))
}

impl Node {
    /// Repeats a request that may be served twice after each broken connection, until `deadline`. Returns
    /// `Unknown` for any failure of the last attempt if an earlier one may have arrived.
    pub(crate) async fn ask_until(
        self: &Arc<Self>,
        whom: Life,
        ask: &Ask,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        let mut perhaps_heard = false;
        loop {
            match self.put_to(whom, ask, deadline).await {
                Ok(answer) => return answer,
                Err(Error::Unknown) if self.platform.now() + RECONNECT_PAUSE < deadline => {
                    sometimes!("a question was asked again");
                    perhaps_heard = true;
                    self.timers.until(self.platform.now() + RECONNECT_PAUSE).await;
                }
                // Either the called incarnation or this one has ended.
                Err(error @ (Error::NodeDown(_) | Error::LinkDown)) => return Err(error),
                Err(error) => return Err(if perhaps_heard { Error::Unknown } else { error }),
            }
        }
    }

    /// Asks once, by `deadline`. Without a final answer, and also if this future is dropped, a task goes on
    /// asking until there is one or the called incarnation has ended.
    pub(crate) async fn ask_for_sure(
        self: &Arc<Self>,
        whom: Life,
        ask: Ask,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        let again = Undo::new(self, whom, ask.clone());
        let outcome = self.put_to(whom, &ask, deadline).await;
        if stands(&outcome) {
            again.disarm();
        }
        outcome.flatten()
    }

    /// Asks an incarnation of a node again and again until it has answered or has ended.
    pub(crate) async fn insist(self: &Arc<Self>, whom: Life, ask: &Ask) {
        let is_there = || whom == (self.me, self.incarnation) || self.peer_life(whom.0) == Some(whom.1);
        while is_there() && !self.is_fenced() {
            let deadline = self.platform.now() + ATTEMPT;
            if stands(&self.put_to(whom, ask, deadline).await) {
                return;
            }
            sometimes!("what must be heard was said again");
            self.timers.until(self.platform.now() + RECONNECT_PAUSE).await;
        }
    }

    /// Runs [`insist`](Self::insist) in a task of its own.
    pub(crate) fn spawn_insist(self: &Arc<Self>, whom: Life, ask: Ask) {
        let node = self.clone();
        self.platform.spawn("lite-insist", Box::pin(async move { node.insist(whom, &ask).await }));
    }
}

/// Asks a node to undo something if this is dropped while armed: a future that is dropped, or that ends
/// without the outcome of its request, leaves nothing behind.
pub(crate) struct Undo<'a> {
    node: &'a Arc<Node>,
    whom: Life,
    ask: Option<Ask>,
}

impl<'a> Undo<'a> {
    /// Makes an armed `Undo`. Must be made before the request is sent.
    pub(crate) fn new(node: &'a Arc<Node>, whom: Life, ask: Ask) -> Self {
        Self { node, whom, ask: Some(ask) }
    }

    /// Disarms it: the outcome of the request is known.
    pub(crate) fn disarm(mut self) {
        self.ask = None;
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(ask) = self.ask.take().filter(|_| !planted(Bug::UndoForgotten)) {
            self.node.spawn_insist(self.whom, ask);
        }
    }
}
