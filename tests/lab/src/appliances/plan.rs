//! The machines of a run, and the network between them.

use super::{CardKey, RdmaNic};
use netfault::Faults;
use qemu::vm::Machine;
use std::path::PathBuf;

/// The number and the properties of appliances, and the network between them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of appliances.
    pub nodes: u16,
    /// The processors of each appliance.
    pub cpus: u32,
    /// The machine model of QEMU.
    pub machine: Machine,
    /// The RDMA devices, assigned to the appliances in turn.
    pub nics: Vec<RdmaNic>,
    /// Further options of the appliances' emulated cards.
    pub card_keys: Vec<CardKey>,
    /// True if the RDMA device is the only network device of an appliance.
    pub one_nic: bool,
    /// The part of an appliance's memory that its peers can access: the value of `remote` on its command
    /// line.
    pub remote: String,
    /// The faults of the network.
    pub faults: Faults,
    /// The seed that decides which frames the faults hit.
    pub seed: u64,
    /// The path for a socket by which another machine can join the network.
    pub fabric_socket: Option<PathBuf>,
    /// The file for a capture of all frames as they were sent.
    pub pcap: Option<PathBuf>,
}

impl Plan {
    /// Returns the RDMA device of the appliance `index`.
    #[must_use]
    pub fn nic(&self, index: u16) -> &RdmaNic {
        self.nics.iter().cycle().nth(index.into()).unwrap_or(&RdmaNic::SoftRoce)
    }

    /// Returns the appliances that have a card, each with its profile.
    pub fn cards(&self) -> impl Iterator<Item = (u16, &'static str)> {
        (0..self.nodes).filter_map(|index| Some((index, self.nic(index).profile()?)))
    }

    /// Returns true if there are InfiniBand ports, which need a subnet manager.
    #[must_use]
    pub fn has_infiniband(&self) -> bool {
        (0..self.nodes).any(|index| self.nic(index).is_infiniband())
    }

    /// Returns the further options of an appliance's card.
    pub fn card_keys(&self, index: u16) -> impl Iterator<Item = String> {
        self.card_keys.iter().filter(move |card| card.node == index).map(|card| card.key.clone())
    }

    /// Returns the first option for a card of an appliance that has none.
    #[must_use]
    pub fn key_without_card(&self) -> Option<&CardKey> {
        self.card_keys.iter().find(|card| self.cards().all(|(index, _)| index != card.node))
    }
}
