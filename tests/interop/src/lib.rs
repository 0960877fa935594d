//! Ferrolite's transport against Linux's `rdma_rxe`. [`Host`] is the software RNIC in this process, on a port
//! of the fabric. [`Peer`] is a program in a Linux guest on another port, which executes commands with
//! libibverbs.
//!
//! # Neighbours
//! [`softroce`] is under test; [`qemu`] starts the Linux guest.
#![forbid(unsafe_code)]

mod host;
mod peer;

pub use host::{Host, UdTarget, pattern};
pub use peer::{Linux, Peer, Session, Wc};
