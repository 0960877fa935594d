//! An emulated ConnectX-3 (Pro). The device ([`device`]) is independent of QEMU; the server ([`vfio`],
//! [`server`]) connects devices to QEMU processes.
#![deny(unsafe_code)]
#![allow(unreachable_pub, reason = "the visibility of the device's parts is being narrowed")]

pub mod device;
pub mod options;
pub mod pci;
pub mod server;
pub mod subnet;
pub mod trace;
pub mod vfio;
