//! InfiniBand subnet management on the side of a managed node: the common parts of channel adapter ports and
//! of switches.
//!
//! Names and layouts follow the InfiniBand Architecture Specification, volume 1, chapters 13 (datagrams), 14
//! (subnet management) and 16.1 (performance management).

mod identity;
mod mad;
mod performance;
mod port;
mod port_info;
pub mod switch;
mod training;

pub use identity::{Identity, NodeKind};
pub(crate) use mad::offset;
pub use mad::{Answer, Mad, Outcome, attribute, class, method};
pub use performance::Traffic;
pub use port::{ManagedPort, PARTITIONS, Written};
pub use port_info::{LinkState, PortInfo};
pub use switch::Switch;
pub use training::{Change, Training};
