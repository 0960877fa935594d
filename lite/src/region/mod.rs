//! Regions (LMRs): memory on one node or several that others map, read and write.

mod fence;
mod handle;
mod layout;
mod lend;
mod mapping;
mod memory;
mod owner;

pub use handle::Lmr;
pub(crate) use layout::{Piece, Spot};
pub(crate) use lend::Loan as Lent;
pub(crate) use mapping::{Mapping, MappingTable};
pub(crate) use memory::Plan;
pub(crate) use owner::{RegionTable, Shape};
