//! An emulated ConnectX-3 (Pro). The device ([`device`]) is independent of QEMU; the server ([`vfio`],
//! [`server`]) connects devices to QEMU processes.
#![deny(unsafe_code)]

pub mod device;
pub mod options;
pub mod pci;
pub mod server;
pub mod subnet;
pub mod trace;
pub mod vfio;
