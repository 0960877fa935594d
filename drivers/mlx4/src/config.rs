//! What a driver is started with.

/// What a driver is started with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The port, from 1.
    pub port: u8,
    /// Bytes of the payload of an Ethernet frame on the port's network.
    pub mtu: u16,
    /// The MSI-X vector of interrupts.
    pub vector: u16,
}

impl Default for Config {
    /// The first port on a network with frames of the usual size.
    fn default() -> Self {
        Self { port: 1, mtu: 1500, vector: 0 }
    }
}
