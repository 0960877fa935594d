//! The server's side of vfio-user, the protocol by which QEMU reaches a PCI device in another process
//! (QEMU `docs/interop/vfio-user.rst`): ten of its commands, which are those that QEMU sends.

mod connection;
mod irq;
mod message;
mod ram;

pub use connection::{Client, Connection, Ended, Function, Region, RegionIndex};
pub use irq::{Interrupts, VECTORS};
pub use ram::GuestMemory;
