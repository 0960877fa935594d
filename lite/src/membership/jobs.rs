//! The messages of jobs, which the application runtime takes.

use super::standing::Membership;
use alloc::sync::Arc;
use proto::ToNode;

/// The control messages of jobs, for the application runtime.
#[derive(Clone)]
pub struct JobMessages {
    pub(crate) node: Arc<Membership>,
}

impl JobMessages {
    /// Returns the next message about jobs, or [`ToNode::Shutdown`]. Once this node is no longer a member,
    /// and all earlier messages have been taken, returns [`ToNode::Refused`] each time.
    pub async fn next(&self) -> ToNode {
        let control = &self.node.control;
        let take = || match control.jobs.lock().pop() {
            Some(message) => Some(message),
            None if control.has_ended() => {
                Some(ToNode::Refused { reason: "this node has lost its membership".into() })
            }
            None => None,
        };
        control.jobs_change.until(take).await
    }
}
