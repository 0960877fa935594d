//! A process of the host on a port of a fabric: an Ethernet port over a Unix stream socket, in the framing of QEMU's
//! `stream` netdev (each frame has its length in front, 4 bytes, big-endian; QEMU `net/stream.c`).
//!
//! [`FrameStream`] carries frames of any kind. [`FabricPort`] is an [`EthernetPort`](softroce::EthernetPort) over one:
//! it gives softroce the RoCE frames and answers who asks for the port's addresses (ARP, ND) itself.
//!
//! The socket never blocks. Whoever sleeps until there is something to do waits at the port's [`Watch`].
#![forbid(unsafe_code)]

mod port;
mod stream;

pub use port::{FabricPort, Handle, RoceFrames};
pub use stream::{Closed, ConnectError, FrameStream, LONGEST_FRAME, Watch};
