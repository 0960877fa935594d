//! An RNIC on a Linux host: [`verbs::Rnic`] through libibverbs, over a card or `rdma_rxe`.
//!
//! [`open`] maps an [`Arena`], registers it as a whole under one key, and gives an [`IbvRnic`] that serves it. A device
//! address is a virtual address of this process. The bindings load libibverbs when the process starts, so that
//! programs with this driver start, and say what is missing, where there is none.
//!
//! What differs from an RNIC that the kernel drives itself:
//! - [`connect_qp`](verbs::Rnic::connect_qp) on Ethernet waits for the peer's address to be resolved (the kernel does that
//!   within `ibv_modify_qp`), some seconds if nobody answers.
//! - An atomic on memory of this process that peers use atomically must go through a queue pair too, connected to
//!   itself or to another of this RNIC: the processor's atomics and the device's do not exclude each other.
//! - Work without a completion of its own leaves the send queue when later work completes, and is reported as
//!   flushed if its queue pair is destroyed before that, though it may have been done.

mod arena;
mod config;
mod sync;

#[cfg(not(feature = "libibverbs"))]
mod absent;
#[cfg(feature = "libibverbs")]
mod codes;
#[cfg(feature = "libibverbs")]
mod device;
#[cfg(feature = "libibverbs")]
mod ring;
#[cfg(feature = "libibverbs")]
mod select;
#[cfg(feature = "libibverbs")]
mod sysfs;

#[cfg(not(feature = "libibverbs"))]
pub use absent::{IbvRnic, open};
pub use arena::Arena;
pub use config::{OpenError, Options};
#[cfg(feature = "libibverbs")]
pub use device::{IbvRnic, open};

use std::sync::Arc;

/// What [`open`] gives.
#[derive(Debug)]
pub struct Opened {
    /// The RNIC.
    pub rnic: Arc<IbvRnic>,
    /// The memory that it serves. It lives as long as either.
    pub arena: Arc<Arena>,
}
