//! An RNIC on a Linux host: [`verbs::Rnic`] through libibverbs, over a card or `rdma_rxe`.
//!
//! [`open`] maps an [`Arena`], registers it as a whole under one key, and returns an [`IbvRnic`] that serves
//! it. A device address is a virtual address of this process. The bindings load libibverbs when the process
//! starts. Programs with this driver therefore start without it too, and name what is missing.
//!
//! Differences from an RNIC that the kernel drives itself:
//! - [`connect_qp`](verbs::Rnic::connect_qp) on Ethernet waits until the peer's address is resolved (the
//!   kernel does that within `ibv_modify_qp`), some seconds if there is no answer.
//! - An atomic on memory of this process that peers use atomically must also go through a queue pair,
//!   connected to itself or to another of this RNIC: the processor's atomics and the device's do not exclude
//!   each other.
//! - Work without a completion of its own leaves the send queue when later work completes. It is reported as
//!   flushed if its queue pair is destroyed before that, although the device may have done it.
//!
//! # Neighbours
//! `host/node` uses it; `softroce` and `mlx4` are the other implementations of [`verbs::Rnic`].

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

/// The result of [`open`].
#[derive(Debug)]
pub struct Opened {
    /// The RNIC.
    pub rnic: Arc<IbvRnic>,
    /// The memory that the RNIC serves. It lives as long as the RNIC or any holder of this reference.
    pub arena: Arc<Arena>,
}
