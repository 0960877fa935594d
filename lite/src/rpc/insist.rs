//! Questions that somebody must answer: undoing what a lost answer may have done, giving up what was held.

use super::internal::{Answer, Ask};
use crate::Error;
use crate::membership::Life;
use crate::node::Node;
use crate::op::RECONNECT_PAUSE;
use crate::planted::{Bug, planted};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::time::Duration;
use platform::Instant;

/// How long one attempt takes.
const ATTEMPT: Duration = Duration::from_secs(2);

impl Node {
    /// Asks what may be asked twice: again after each connection that breaks, until `deadline`. `Unknown` then.
    pub(crate) async fn ask_until(
        self: &Arc<Self>,
        whom: Life,
        ask: &Ask,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        loop {
            match self.ask_node(whom, ask, deadline).await {
                Err(Error::Unknown) if self.platform.now() + RECONNECT_PAUSE < deadline => {
                    self.timers.until(self.platform.now() + RECONNECT_PAUSE).await;
                }
                other => return other,
            }
        }
    }

    /// Asks a life of a node again and again until it has answered or is gone.
    pub(crate) async fn insist(self: &Arc<Self>, whom: Life, ask: &Ask) {
        let is_there = || whom == (self.me, self.incarnation) || self.peer_life(whom.0) == Some(whom.1);
        while is_there() && !self.is_fenced() {
            let deadline = self.platform.now() + ATTEMPT;
            match self.put_to(whom, ask, deadline).await {
                // A node that is short of memory, or that has no room for one more connection, has it another time.
                Err(_) | Ok(Err(Error::NoMemory { .. })) => {
                    self.timers.until(self.platform.now() + RECONNECT_PAUSE).await;
                }
                // Done, or refused for good.
                Ok(_) => return,
            }
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
