//! The one model of what a network does to frames: loss, duplication, reordering, delay, corruption, a limited
//! rate with its queue, and congestion marks, by seed.
//!
//! Pure: time is an input in nanoseconds and nothing here waits or does I/O, so the L2 fabric in front of real virtual
//! machines and the simulated cluster under virtual time share it. [`pcap`] writes captures of either.
#![forbid(unsafe_code)]

mod ecn;
mod faults;
pub mod pcap;
mod queue;
pub mod switch;

pub use faults::{Faults, ParseFaultsError};
pub use queue::{Counters, FaultQueue};
