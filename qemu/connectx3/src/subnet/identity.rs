//! The identity of a node: NodeInfo and NodeDescription.

/// The kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum NodeKind {
    /// A channel adapter.
    ChannelAdapter = 1,
    /// A switch.
    Switch = 2,
}

/// The identity of a node.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The kind of the node.
    pub kind: NodeKind,
    /// The number of external ports.
    pub ports: u8,
    /// The GUID of the node, and of its system.
    pub guid: u64,
    /// The device id.
    pub device_id: u16,
    /// The device revision.
    pub revision: u32,
    /// The node description, up to 64 bytes.
    pub description: &'static str,
}

impl Identity {
    /// Returns NodeInfo for a request at a port. `partitions` is the number of entries in a port's P_Key
    /// table.
    #[must_use]
    pub fn node_info(&self, port: u8, port_guid: u64, partitions: u16) -> [u8; 64] {
        const VENDOR: [u8; 3] = [0x00, 0x02, 0xc9];
        let mut data = [0; 64];
        data[..4].copy_from_slice(&[1, 1, self.kind as u8, self.ports]);
        data[4..12].copy_from_slice(&self.guid.to_be_bytes());
        data[12..20].copy_from_slice(&self.guid.to_be_bytes());
        data[20..28].copy_from_slice(&port_guid.to_be_bytes());
        data[28..30].copy_from_slice(&partitions.to_be_bytes());
        data[30..32].copy_from_slice(&self.device_id.to_be_bytes());
        data[32..36].copy_from_slice(&self.revision.to_be_bytes());
        data[36] = port;
        data[37..40].copy_from_slice(&VENDOR);
        data
    }

    /// Returns NodeDescription.
    #[must_use]
    pub fn node_description(&self) -> [u8; 64] {
        let mut data = [0; 64];
        for (place, byte) in data.iter_mut().zip(self.description.bytes()) {
            *place = byte;
        }
        data
    }
}
