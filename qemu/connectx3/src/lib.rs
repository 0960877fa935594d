//! An emulated ConnectX-3 (Pro): the device ([`device`]), which needs no QEMU, and the server that gives it to one
//! ([`vfio`], [`server`]).
#![deny(unsafe_code)]

pub mod device;
pub mod options;
pub mod pci;
pub mod server;
pub mod subnet;
pub mod trace;
pub mod vfio;
