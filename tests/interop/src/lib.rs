//! Our transport against Linux' `rdma_rxe`: [`Host`] is the software RNIC as a process on a port of the fabric, and
//! [`Peer`] a program in a Linux guest on another, which does with libibverbs what it is told.
#![forbid(unsafe_code)]

mod host;
mod peer;

pub use host::{Host, UdTarget, pattern};
pub use peer::{Linux, Peer, Session, Wc};
