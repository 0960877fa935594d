//! Regions (LMRs): memory on one or several nodes that other nodes map, read and write.

mod access;
mod admin;
mod change;
mod copy;
mod errands;
mod estate;
mod exclusion;
mod fence;
mod handle;
mod handle_shared;
mod handle_table;
mod here;
mod holdings;
mod issuer;
mod layout;
mod lend;
mod local;
mod mapped;
mod mapping;
mod memory;
mod notify;
mod owner;
mod pages;
mod placement;
mod queue;
mod relocate;
pub(crate) mod request;
mod rights;
mod serve;
mod slow_path;
mod table;
mod vacate;
mod vector;
mod watch;

pub use handle::Lmr;
pub(crate) use issuer::Issuer;
#[cfg(feature = "testing")]
pub(crate) use layout::Piece;
pub use local::LocalMemory;
pub(crate) use mapping::Mappings;
pub(crate) use memory::RegionMemory;
pub(crate) use owner::RegionOwner;
pub use placement::Placement;
pub use queue::{Completed, CompletionQueue, Op, OpKind};
pub(crate) use relocate::Mover;
pub use rights::Grantee;
