//! An emulated ConnectX-3 (Pro). The device ([`device`]) is independent of QEMU; the server ([`vfio`],
//! [`server`]) connects devices to QEMU processes.
//!
//! # Neighbours
//! [`roce`] is the transport of its queue pairs, `mlx4` a driver for it, and `tests/cards` combines the
//! two.
#![deny(unsafe_code)]

pub mod device;
pub mod options;
pub mod pci;
pub mod server;
pub mod subnet;
pub mod trace;
pub mod vfio;
