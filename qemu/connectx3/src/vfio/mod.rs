//! The server's side of vfio-user, the protocol by which QEMU accesses a PCI device in another process (QEMU
//! `docs/interop/vfio-user.rst`). Ten of its commands are implemented, which are those that QEMU sends.

mod connection;
mod irq;
mod message;
mod ram;

pub use connection::{Client, Connection, Ended, Function, Region, RegionIndex};
pub use irq::{Interrupts, VECTORS};
pub use ram::GuestMemory;
