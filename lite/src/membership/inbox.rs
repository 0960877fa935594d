//! The manager's messages that are not for LITE.

use super::standing::Membership;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The manager's messages to the program above LITE, such as a runtime of jobs. LITE passes them on unread.
#[derive(Clone)]
pub struct ControlMessages {
    pub(crate) node: Arc<Membership>,
}

impl ControlMessages {
    /// Waits for the next message and returns it, encoded. Returns `None` once this node is no longer a
    /// member, and all earlier messages have been taken.
    pub async fn next(&self) -> Option<Vec<u8>> {
        let control = &self.node.control;
        let take = || match control.inbox.lock().pop() {
            Some(message) => Some(Some(message)),
            None if control.has_ended() => Some(None),
            None => None,
        };
        control.inbox_change.until(take).await
    }
}
