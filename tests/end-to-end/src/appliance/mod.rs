//! Appliances that tests boot themselves, without `cargo xtask run`.

pub(crate) mod boot;
pub(crate) mod cluster;
pub(crate) mod image;
mod patience;
pub(crate) mod perftest;
mod place;
pub(crate) mod semantics;
