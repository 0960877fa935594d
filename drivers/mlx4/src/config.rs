//! What a driver is started with.

use platform::IoAddr;

/// What the frames of a port are made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// Ethernet, with RoCE.
    Ethernet,
    /// Native InfiniBand.
    InfiniBand,
}

/// What of this machine's memory peers may reach, if they name the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remote {
    /// All of it, by the one key that work of this side names too.
    All,
    /// A part of it only, by a key of its own. The card refuses the rest.
    Part {
        /// The first byte, at the beginning of a page.
        base: IoAddr,
        /// Bytes.
        len: u64,
    },
}

/// What a driver is started with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The port, from 1.
    pub port: u8,
    /// What a port that can be of either layer is to be. `None`: what the card suggests. One that cannot is an error.
    pub layer: Option<Layer>,
    /// What peers may reach.
    pub remote: Remote,
    /// Whether a port on Ethernet sends and takes plain frames too ([`Mlx4::receive_frames`](crate::Mlx4::receive_frames)).
    pub frames: bool,
    /// Bytes of the payload of an Ethernet frame on the port's network.
    pub mtu: u16,
    /// The MSI-X vector of interrupts.
    pub vector: u16,
}

impl Default for Config {
    /// The first port on a network with frames of the usual size.
    fn default() -> Self {
        Self { port: 1, layer: None, remote: Remote::All, frames: false, mtu: 1500, vector: 0 }
    }
}
