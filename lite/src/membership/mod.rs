//! The membership of this node and of its peers: lease, changes, departure.

mod inbox;
mod leave;
mod members;
mod receive;
mod standing;

pub use inbox::ControlMessages;
pub(crate) use members::Watchers;
pub use members::{Change, Watcher};
pub(crate) use standing::Membership;
