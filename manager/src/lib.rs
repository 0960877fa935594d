//! The cluster manager: its state machine without I/O, the daemon around it, and the client of its protocol.
//!
//! # Neighbours
//! [`proto`] defines the messages; `lite` and `runtime` are their other end on a node.
#![forbid(unsafe_code)]

pub mod access;
pub mod backup;
pub mod client;
pub mod core;
pub mod daemon;
pub mod http;
pub mod inventory;
mod kernel;
pub mod key;
mod log;
mod planted;
pub mod power;
pub mod pxe;
pub mod utc;

pub use log::{LogFormat, log_line};

#[cfg(all(feature = "testing", debug_assertions))]
pub use planted::{Bug, plant};
