//! InfiniBand mode of a port: its link, its management and the routes of its packets.

mod agent;
mod link;
pub(super) mod partition;
pub(super) mod route;

use crate::subnet::{LinkState, ManagedPort, Traffic, Training};
use roce::wire::{CABLE, ETHERTYPE_INFINIBAND, Ethernet, Symbol};
use verbs::MacAddr;

/// The port's capability mask: SL mapping, automatic path migration, system image GUID, connection
/// management, vendor class, client reregistration. Traps and notices are not supported.
const CAPABILITIES: u32 = 1 << 5 | 1 << 6 | 1 << 11 | 1 << 16 | 1 << 20 | 1 << 25;

/// The InfiniBand state of a port.
#[derive(Debug)]
pub(super) struct IbPort {
    /// The port's attributes, as a subnet manager sees them.
    pub managed: ManagedPort,
    /// The state of the link's training.
    pub training: Training,
    /// The counts of packets.
    pub traffic: Traffic,
}

impl IbPort {
    /// Creates a port. `number` counts from 1.
    #[must_use]
    pub(super) fn new(number: u8, guid: u64) -> Self {
        Self {
            managed: ManagedPort::new(number, guid, CAPABILITIES, true),
            training: Training::default(),
            traffic: Traffic::default(),
        }
    }

    /// Returns whether the link passes data.
    #[must_use]
    pub(super) const fn is_active(&self) -> bool {
        matches!(self.managed.info.state(), LinkState::Active)
    }
}

/// Returns the header of a frame on a cable.
pub(super) const fn cable(from: MacAddr) -> Ethernet {
    Ethernet { dst: CABLE, src: from, ethertype: ETHERTYPE_INFINIBAND }
}

/// Returns a frame that carries only a symbol.
fn symbol_frame(from: MacAddr, symbol: Symbol) -> Vec<u8> {
    [&cable(from).emit()[..], &(symbol as u16).to_be_bytes()].concat()
}
