//! A cluster in one process: the real LITE, software RNIC, transport and manager, under virtual time and one
//! seed.
//!
//! The seed decides the order of tasks, every frame passes the fault model, and the trace of all frames
//! and control messages has a hash: the same seed gives the same hash.
//!
//! # Neighbours
//! [`lite`], [`manager`](::manager) and [`softroce`] are the real crates; `semantics` runs its cases on such
//! a cluster.
#![forbid(unsafe_code)]

mod cluster;
pub mod explore;
mod forger;
mod manager;
mod nic;
#[cfg(debug_assertions)]
pub mod planted;
mod random;
mod shadow;
mod timeline;
mod trace;
mod wire;

pub use cluster::{Cluster, Options};
pub use forger::{Forgery, with_payload};
pub use manager::{ControlLinks, Crash, Direction, Disk, DiskFaults, SimManager, Socket};
pub use nic::{Nic, Nics};
pub use timeline::{NodeTrace, chrome, text};
pub use trace::Trace;
pub use wire::{Late, SimPort, Wire};
