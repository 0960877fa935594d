//! Virtual machines: the launcher of appliances, the accelerator probe, Linux guests, emulated cards.

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
pub use install::{OLDEST_QEMU, Qemu};
pub use process::die_with_this_thread;
pub use symbols::Symbols;
pub use uplink::Uplink;
