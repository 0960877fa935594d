//! A Linux process as a node of the cluster: the same `lite` crate as in the appliance, over a platform of
//! Linux.
//!
//! [`Node::join`] uses an RNIC ([`Nic`]), joins through the manager and runs LITE. There are threads
//! instead of a kernel: one polls the RNIC and LITE and sleeps when both are idle, one sends on the control
//! connection and keeps its heartbeats going, one reads from it, one runs LITE's own tasks, and a
//! configurable number runs those of applications. An application that computes takes no time from the
//! other threads, so the node stays a member and serves its peers meanwhile.
//!
//! # Neighbours
//! [`lite`] is the same as on an appliance, `ibverbs` and `softroce` are its RNICs, and `host/capi` is
//! the library for C above it.
#![forbid(unsafe_code)]

mod clock;
mod host;
mod link;
mod log_ring;
pub mod nic;
mod node;
mod poller;

pub use clock::Clock;
pub use log_ring::keep_log;
pub use nic::{Nic, SoftroceError};
pub use node::{JoinError, Node, Options};
