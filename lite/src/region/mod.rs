//! Regions (LMRs): memory on one node that others map, read and write.

mod handle;
mod mapping;
mod owner;

pub use handle::Lmr;
pub(crate) use mapping::{Mapping, MappingTable};
pub(crate) use owner::RegionTable;
