//! The cluster manager: its state machine without I/O, the daemon around it, and the client of its protocol.
#![forbid(unsafe_code)]

pub mod client;
pub mod core;
pub mod daemon;
pub mod key;
pub mod planted;
