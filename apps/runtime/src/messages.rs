//! The manager's messages about jobs.

use lite::{ControlMessages, Lite};
use proto::ToNode;

/// The messages of jobs, and [`ToNode::Shutdown`].
pub(crate) struct JobMessages(ControlMessages);

impl JobMessages {
    pub(crate) fn new(lite: &Lite) -> Self {
        Self(lite.control_messages())
    }

    /// Waits for the next message. Returns `None` once this node is no longer a member.
    pub(crate) async fn next(&self) -> Option<ToNode> {
        loop {
            let bytes = self.0.next().await?;
            match proto::decode(&bytes) {
                Ok(message) => return Some(message),
                Err(_) => log::warn!("malformed message of the manager, {} bytes", bytes.len()),
            }
        }
    }
}
