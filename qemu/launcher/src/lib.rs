//! Virtual machines: the launcher of appliances, the accelerator probe, Linux guests, emulated cards.
//!
//! # Neighbours
//! [`fabric`] is the switch between the machines, `connectx3` the emulated card; `xtask` and the tests
//! boot machines.

pub mod accel;
pub mod cx3;
mod debian;
mod install;
pub mod linux;
mod process;
mod symbols;
mod unpacked;
mod uplink;
pub mod vm;

pub use cx3::Cx3;
pub use debian::Packages;
pub use install::{OLDEST_QEMU, Qemu};
pub use process::die_with_this_thread;
pub use symbols::Symbols;
pub use uplink::Uplink;
