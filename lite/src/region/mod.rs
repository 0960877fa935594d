//! Regions (LMRs): memory on one node or several that others map, read and write.

mod fence;
mod handle;
mod layout;
mod mapping;
mod memory;
mod owner;

pub use handle::Lmr;
pub(crate) use layout::{Piece, Spot};
pub(crate) use mapping::{Mapping, MappingTable};
pub(crate) use memory::Plan;
pub(crate) use owner::{RegionTable, Shape};
