//! LITE on nodes that share one thread and a network in memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod allocations;
mod connections;
mod control;
mod departed;
mod departed_requests;
mod given_up;
mod hostile;
#[cfg(debug_assertions)]
mod interleavings;
mod large;
mod membership;
mod mishaps;
mod names;
mod one_sided;
mod posting;
mod qos;
mod regions;
mod rpc;
mod silence;
mod sync;
mod two_nodes;
mod unfinished;
