//! LITE on nodes that share one thread and a network in memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod allocations;
mod connections;
mod departed;
mod hostile;
mod large;
mod membership;
mod mishaps;
mod one_sided;
mod qos;
mod regions;
mod rpc;
mod sync;
mod two_nodes;
