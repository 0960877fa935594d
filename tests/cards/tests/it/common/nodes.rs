//! Two machines with cards of one profile, each with its driver, on one wire.

use super::pair::{End, Post};
use super::subnet::{configure, train};
use super::wire::Station;
use super::{Driver, Machine, begun, node, node_with};
use mlx4::Config;
use std::sync::Arc;
use verbs::{LinkKind, PortState, Rnic};

/// The cards that the driver supports, each with its frame formats.
pub(crate) const CARDS: &[(&str, &[LinkKind])] = &[
    ("pro", BOTH),
    ("cx3", &[LinkKind::RoceV1]),
    ("vf", &[LinkKind::RoceV1]),
    ("sys-eqs", SECOND),
    ("large-entries", SECOND),
    ("sw-cq-init", SECOND),
    ("blueflame", SECOND),
    ("a0", SECOND),
    ("slow", SECOND),
    ("vpi", SECOND),
    ("torn-atomics", SECOND),
    ("ib", &[LinkKind::InfiniBand]),
];

/// The code of the path MTU of 4096 bytes.
pub(crate) const MTU_4096: u8 = 5;
const BOTH: &[LinkKind] = &[LinkKind::RoceV2, LinkKind::RoceV1];
const SECOND: &[LinkKind] = &[LinkKind::RoceV2];

/// Runs `test` on two nodes of each card with each frame format.
pub(crate) fn on_every_card(mut test: impl FnMut(&str, LinkKind, Nodes)) {
    for (profile, links) in CARDS {
        for link in *links {
            println!("{profile} {link:?}");
            test(profile, *link, Nodes::new(profile));
        }
    }
}

/// Two nodes.
pub(crate) struct Nodes {
    pub machines: [Arc<Machine>; 2],
    pub drivers: [Driver; 2],
}

impl Nodes {
    /// Makes two nodes whose links are up; a subnet manager configures InfiniBand links.
    pub(crate) fn new(profile: &str) -> Self {
        if profile != "ib" {
            let ((ma, da), (mb, db)) = (node(profile, 1), node(profile, 2));
            return Self { machines: [ma, mb], drivers: [da, db] };
        }
        let nodes = Self::cold(profile);
        train(&nodes.machines);
        for (lid, (machine, driver)) in (1..).zip(nodes.machines.iter().zip(&nodes.drivers)) {
            configure(machine, driver, lid, MTU_4096);
            assert_eq!(driver.attributes().port_state, PortState::Active);
        }
        nodes
    }

    /// Makes two Ethernet nodes with a configuration for each.
    pub(crate) fn with(profile: &str, config: impl Fn(u8) -> Config) -> Self {
        let [(ma, da), (mb, db)] = [1, 2].map(|number| node_with(profile, number, &config(number)));
        Self { machines: [ma, mb], drivers: [da, db] }
    }

    /// Makes two nodes, and does not wait for their links.
    pub(crate) fn cold(profile: &str) -> Self {
        Self::cold_with(profile, |_| Config::default())
    }

    /// Makes two nodes with a configuration for each, and does not wait for their links.
    pub(crate) fn cold_with(profile: &str, config: impl Fn(u8) -> Config) -> Self {
        let [(ma, da), (mb, db)] = [1, 2].map(|number| begun(profile, number, &config(number)));
        Self { machines: [ma, mb], drivers: [da, db] }
    }

    /// Makes a queue pair at each of the two nodes, connected to each other.
    pub(crate) fn connect(&self, link: LinkKind) -> [End<'_>; 2] {
        let [a, b] = [0, 1].map(|n| End::new(&self.drivers[n], &self.machines[n].bus.data));
        a.connect(&b, link);
        b.connect(&a, link);
        [a, b]
    }

    /// Makes a queue pair for datagrams at each node.
    pub(crate) fn posts(&self) -> [Post<'_>; 2] {
        [0, 1].map(|n| Post::new(&self.drivers[n], &self.machines[n].bus.data))
    }

    /// Returns the stations on the wire.
    pub(crate) fn stations(&self) -> [&dyn Station; 2] {
        let [a, b] = &self.machines;
        [a, b]
    }
}
