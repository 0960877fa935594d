//! Questions whose effect must not outlive an answer that nobody got.

use super::internal::Ask;
use crate::node::Node;
use alloc::sync::Arc;
use proto::NodeId;

/// Asks a node to undo something, in a task of its own, if dropped while armed: a future that is dropped, or that ends without
/// knowing what became of its question, leaves nothing behind.
pub(crate) struct Undo<'a> {
    node: &'a Arc<Node>,
    whom: NodeId,
    ask: Option<Ask>,
}

impl<'a> Undo<'a> {
    /// Armed: to be made before the question is asked.
    pub(crate) fn new(node: &'a Arc<Node>, whom: NodeId, ask: Ask) -> Self {
        Self { node, whom, ask: Some(ask) }
    }

    /// The question's outcome is known: there is nothing to undo.
    pub(crate) fn disarm(mut self) {
        self.ask = None;
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(ask) = self.ask.take() {
            self.node.spawn_tidy(self.whom, ask);
        }
    }
}
