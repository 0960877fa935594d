//! A Linux process as a node of the cluster: the same `lite` crate as in the appliance, over a host platform.
//!
//! [`Node::join`] takes an RNIC ([`Nic`]), joins through the manager and runs LITE. Threads instead of a kernel: one polls
//! the RNIC and LITE and sleeps when both are idle, one keeps the control connection and its heartbeats going, one reads
//! from it, one runs LITE's own tasks, and as many as asked run those of applications. An application that computes takes
//! none of the others' time, so the node stays a member and serves its peers meanwhile.
#![forbid(unsafe_code)]

pub mod apps;
mod clock;
mod host;
mod link;
pub mod nic;
mod node;
mod poller;

pub use clock::Clock;
pub use nic::{Nic, SoftroceError};
pub use node::{JoinError, Node, Options};
