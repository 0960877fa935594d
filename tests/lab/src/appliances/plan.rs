//! The machines of a run, and the network between them.

use super::{CardKey, RdmaNic};
use anyhow::{Context, Result, ensure};
use connectx3::options::{self, Property};
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
    /// The settings of LITE, each as `NAME=VALUE`.
    pub settings: Vec<String>,
    /// The faults of the network.
    pub faults: Faults,
    /// The seed that decides which frames the faults hit.
    pub seed: u64,
    /// The path for a socket by which another machine can join the network.
    pub fabric_socket: Option<PathBuf>,
    /// The number of further ports of the network, for programs of this host.
    pub free_ports: u16,
    /// The file for a capture of all frames as they were sent.
    pub pcap: Option<PathBuf>,
}

impl Plan {
    /// Returns the words of a command line for LITE's settings, each with a space before it.
    #[must_use]
    pub fn lite_words(&self) -> String {
        self.settings.iter().map(|setting| format!(" lite.{setting}")).collect()
    }

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

    /// Checks that each further option is for an appliance with a card, and that the card accepts it: before
    /// anything is built, because otherwise the program that serves the card would fail later.
    pub fn check_card_keys(&self) -> Result<()> {
        for CardKey { node, key, .. } in &self.card_keys {
            let has_card = self.cards().any(|(index, _)| index == *node);
            ensure!(has_card, "{node}:{key}: appliance {node} has no card");
        }
        for (index, profile) in self.cards() {
            let mut properties = vec![Property::Profile(profile)];
            if !self.nic(index).is_infiniband() {
                // The cable leads to the run's own fabric, whose socket does not exist yet.
                properties.push(Property::Fabric { port: 0, socket: PathBuf::new() });
            }
            let further = self.card_keys.iter().filter(|card| card.node == index);
            properties.extend(further.map(|card| card.property.clone()));
            options::make(&properties, 0).with_context(|| format!("the card of appliance {index}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(nics: &[&str], keys: &[&str]) -> Plan {
        Plan {
            nodes: 2,
            cpus: 1,
            machine: Machine::Microvm,
            nics: nics.iter().map(|nic| nic.parse().unwrap()).collect(),
            card_keys: keys.iter().map(|key| key.parse().unwrap()).collect(),
            one_nic: false,
            remote: "all".into(),
            settings: Vec::new(),
            faults: Faults::default(),
            seed: 1,
            fabric_socket: None,
            free_ports: 0,
            pcap: None,
        }
    }

    #[test]
    fn an_option_is_refused_that_its_card_does_not_accept() {
        for (nics, keys) in [
            (&["cx3", "softroce"][..], &["0:fails=5"][..]),
            (&["cx3:pro-2port"], &["0:fabric2=/f", "1:dies=3"]),
            (&["cx3:ib"], &["1:fabric=/f", "1:mac=00:02:c9:00:00:01"]),
        ] {
            assert!(plan(nics, keys).check_card_keys().is_ok(), "{keys:?}");
        }
        for (nics, keys, says) in [
            (&["cx3", "softroce"][..], &["1:fails=5"][..], "1:fails=5: appliance 1 has no card"),
            (&["cx3"], &["2:fails=5"], "2:fails=5: appliance 2 has no card"),
            (
                &["cx3-vf"],
                &["1:dies=5"],
                "the card of appliance 1: dies is not for profile vf: a virtual function has no error buffer",
            ),
            (
                &["cx3"],
                &["0:fabric2=/f"],
                "the card of appliance 0: fabric2 is not for profile pro, which has one port",
            ),
            (&["cx3"], &["0:fabric=/f"], "the card of appliance 0: fabric is given twice"),
            (&["cx3"], &["0:profile=vf"], "the card of appliance 0: profile is given twice"),
            (
                &["cx3"],
                &["0:fails=1", "0:dies=2"],
                "the card of appliance 0: a card fails or dies, but not both",
            ),
        ] {
            let error = plan(nics, keys).check_card_keys().unwrap_err();
            assert_eq!(format!("{error:#}"), says);
        }
    }
}
