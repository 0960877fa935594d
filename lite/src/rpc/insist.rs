//! Questions that somebody must answer: undoing what a lost answer may have done, giving up what was held.

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

/// How long one attempt takes.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Returns whether a question is answered for good: what it asks for is done or refused. A node that is short of memory, or that has no
/// room for one more connection, has it another time.
fn stands(outcome: &Result<Result<Answer, Error>, Error>) -> bool {
    !matches!(outcome, Err(_) | Ok(Err(Error::NoMemory { .. })))
}

impl Node {
    /// Asks what may be asked twice: again after each connection that breaks, until `deadline`. `Unknown`, whatever comes of the
    /// last attempt, if one before it may have been heard.
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
                // The asked life is gone, or this one is.
                Err(error @ (Error::NodeDown(_) | Error::LinkDown)) => return Err(error),
                Err(error) => return Err(if perhaps_heard { Error::Unknown } else { error }),
            }
        }
    }

    /// Asks once, by `deadline`. Without an answer that stands a task of its own goes on asking until there is one or the
    /// asked life is gone; so it does if this future is dropped.
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

    /// Asks a life of a node again and again until it has answered or is gone.
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

    /// [`insist`](Self::insist), in a task of its own.
    pub(crate) fn spawn_insist(self: &Arc<Self>, whom: Life, ask: Ask) {
        let node = self.clone();
        self.platform.spawn("lite-insist", Box::pin(async move { node.insist(whom, &ask).await }));
    }
}

/// Asks a node to undo something if dropped while armed: a future that is dropped, or that ends without knowing what became of
/// its question, leaves nothing behind.
pub(crate) struct Undo<'a> {
    node: &'a Arc<Node>,
    whom: Life,
    ask: Option<Ask>,
}

impl<'a> Undo<'a> {
    /// Armed: to be made before the question is asked.
    pub(crate) fn new(node: &'a Arc<Node>, whom: Life, ask: Ask) -> Self {
        Self { node, whom, ask: Some(ask) }
    }

    /// The question's outcome is known: there is nothing to undo.
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
