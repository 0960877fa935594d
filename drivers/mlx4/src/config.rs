//! What a driver is started with.

/// What the frames of a port are made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// Ethernet, with RoCE.
    Ethernet,
    /// Native InfiniBand.
    InfiniBand,
}

/// What a driver is started with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The port, from 1.
    pub port: u8,
    /// What a port that can be of either layer is to be. `None`: what the card suggests. One that cannot is an error.
    pub layer: Option<Layer>,
    /// Bytes of the payload of an Ethernet frame on the port's network.
    pub mtu: u16,
    /// The MSI-X vector of interrupts.
    pub vector: u16,
}

impl Default for Config {
    /// The first port on a network with frames of the usual size.
    fn default() -> Self {
        Self { port: 1, layer: None, mtu: 1500, vector: 0 }
    }
}
