//! What a driver is started with.

use alloc::sync::Arc;
use core::ops::Range;
use platform::IoAddr;

/// What the frames of a port are made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// Ethernet, with RoCE.
    Ethernet,
    /// Native InfiniBand.
    InfiniBand,
}

/// What peers may reach, if they name the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Remote {
    /// Whatever the card can address, by the one key that work of this side names too: all memory, the kernel's code and page
    /// tables among it, and the registers of devices. Such a key needs no page entries, and a card is not known to heed
    /// bounds of it.
    Physical,
    /// These ranges of memory, by a key of its own with page entries. The card refuses the rest.
    Ranges(Ranges),
}

impl Remote {
    /// One range only: its first byte, at the beginning of a page, and its bytes.
    #[must_use]
    pub fn part(base: IoAddr, len: u64) -> Self {
        Self::Ranges(core::iter::once(base.0..base.0.saturating_add(len)).collect())
    }
}

/// Addresses of the card, in ascending order. Ranges are apart and not empty, and begin and end with whole pages (4096 bytes), but
/// that the last one ends with any byte.
pub type Ranges = Arc<[Range<u64>]>;

/// What a driver is started with.
#[derive(Clone, PartialEq, Eq, Debug)]
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
        Self { port: 1, layer: None, remote: Remote::Physical, frames: false, mtu: 1500, vector: 0 }
    }
}
