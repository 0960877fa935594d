//! The resolver of Ethernet addresses: ARP (RFC 826) and neighbour discovery (RFC 4861), for RDMA and TCP
//! alike. It also asks routers for a port's IPv6 address.
//!
//! It has no I/O and no clock of its own: frames and time come in, frames go out. Each port has one
//! [`Resolver`]. It answers queries for the port's own addresses, learns from the frames that it receives,
//! and resolves on request, with retries and a deadline. Nothing allocates.
//!
//! # Neighbours
//! The kernel's network and `fabricport` use it.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
mod duplicate_tests;
mod frame;
mod resolver;
mod router;
#[cfg(test)]
mod router_tests;
#[cfg(test)]
mod tests;

pub use frame::{FRAME_MAX, Neighbour, Traffic, advertisement, arp_reply, classify, groups};
pub use resolver::{Resolution, Resolver};
pub use router::{Advertised, link_local};
