//! A process of the host on a port of a fabric: an Ethernet port over a Unix stream socket, in the framing of
//! QEMU's `stream` netdev (a big-endian 4-byte length before each frame; QEMU `net/stream.c`).
//!
//! [`FrameStream`] carries frames of any kind. [`FabricPort`] is an [`EthernetPort`](softroce::EthernetPort)
//! over one: it passes RoCE frames to softroce, and answers queries for the port's addresses (ARP, ND)
//! itself.
//!
//! The socket never blocks. A thread that sleeps until there are events waits at the port's [`Watch`].
//!
//! # Neighbours
//! The other end of the socket is the crate `fabric`; [`softroce`] is the RNIC on such a port.
#![forbid(unsafe_code)]

mod port;
mod stream;

pub use port::{FabricPort, Handle, RoceFrames};
pub use stream::{Closed, ConnectError, FrameStream, LONGEST_FRAME, Watch};
