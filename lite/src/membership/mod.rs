//! The membership of this node and of its peers: lease, changes, departure.

mod jobs;
mod leave;
mod members;
mod receive;
mod standing;

pub use jobs::JobMessages;
pub(crate) use members::Watchers;
pub use members::{Change, Watcher};
pub(crate) use standing::Membership;
