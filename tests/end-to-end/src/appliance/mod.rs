//! Appliances that tests boot themselves, without `cargo xtask run`.

pub(crate) mod bare;
pub(crate) mod boot;
pub(crate) mod cluster;
mod commands;
pub(crate) mod consoles;
mod drained;
mod epoch;
pub(crate) mod image;
pub(crate) mod ipv6;
mod killed;
pub(crate) mod machine;
mod orders;
pub(crate) mod patience;
pub(crate) mod perftest;
mod place;
mod power;
mod release;
mod rollout;
mod screen;
pub(crate) mod screens;
pub(crate) mod semantics;
