//! The model of the faults of a network: loss, duplication, reordering, delay, corruption, a limited rate
//! with its queue, and congestion marks, by seed.
//!
//! It is pure: time is an argument in nanoseconds, and nothing here waits or does I/O. The L2 fabric in front
//! of real virtual machines and the simulated cluster under virtual time therefore share it. [`pcap`] writes
//! captures of either.
//!
//! # Neighbours
//! `fabric`, `connectx3` and `tests/sim` use it.
#![forbid(unsafe_code)]

mod ecn;
mod faults;
pub mod pcap;
mod queue;
pub mod switch;

pub use faults::{Faults, ParseFaultsError};
pub use queue::{Counters, FaultQueue};
