//! Regions (LMRs): memory on one or several nodes that other nodes map, read and write.

mod admin;
mod change;
mod chunks;
mod fence;
mod handle;
mod here;
mod holds;
mod layout;
mod lend;
mod local;
mod mapping;
mod memory;
mod owner;
mod pages;
mod placement;
mod rights;
mod shortcut;
mod stamp;
mod terms;

pub use handle::Lmr;
pub(crate) use holds::Holds;
pub(crate) use layout::{Piece, Spot};
pub(crate) use lend::Loan as Lent;
pub use local::LocalMemory;
pub(crate) use mapping::{Mapping, MappingTable};
pub(crate) use memory::{Holdings, Plan};
pub(crate) use owner::{MapAsk, RegionTable, Shape};
pub use placement::Placement;
pub use rights::Grantee;
pub(crate) use stamp::{StampId, Stamps};
pub(crate) use terms::TermsTable;
