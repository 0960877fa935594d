//! The inventory against the members.

use super::members::Live;
use super::{ConnId, Core};
use crate::inventory::{Expected, Found, Inventory};
use proto::{InventoryNode, Presence, ToClient};
use std::collections::BTreeMap;

/// The length of a page of the inventory, in bytes.
const PAGE: usize = 256 << 10;

/// The inventory against the members, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InventoryView {
    /// The number of nodes that the inventory lists.
    pub listed: usize,
    /// The number of those that are members, as the inventory lists them.
    pub present: usize,
    /// The other nodes, by name: listed ones that are absent or differ, and members that are not listed.
    pub others: Vec<InventoryNode>,
}

impl Core {
    /// Tells a client a page of the inventory against the members: those with names after `after`.
    pub(super) fn tell_inventory(&mut self, conn: ConnId, after: &str) {
        let (mut nodes, mut bytes, mut more) = (Vec::new(), 0, false);
        for node in self.inventory_nodes(after) {
            bytes += proto::encode(&node).len();
            if bytes > PAGE {
                more = true;
                break;
            }
            nodes.push(node);
        }
        self.tell_client(conn, ToClient::Inventory { nodes, more });
    }

    /// Returns the inventory against the members; `None` if it lists no node.
    pub(super) fn inventory_view(&self) -> Option<InventoryView> {
        let listed = self.config.rules.inventory.0.len();
        if listed == 0 {
            return None;
        }
        let nodes = self.inventory_nodes("");
        let (present, others): (Vec<_>, _) = nodes.partition(|node| node.presence == Presence::Present);
        Some(InventoryView { listed, present: present.len(), others })
    }

    /// Returns the nodes of the inventory and the members with names after `after`, by name.
    fn inventory_nodes<'a>(&'a self, after: &'a str) -> impl Iterator<Item = InventoryNode> + 'a {
        let Inventory(expected) = &*self.config.rules.inventory;
        let listed = expected.iter().map(|(name, entry)| (name.as_str(), (Some(entry), None)));
        let mut all: BTreeMap<&str, (Option<&Expected>, Option<&Live>)> = listed.collect();
        for live in self.members.0.values() {
            all.entry(live.member.name.as_str()).or_default().1 = Some(live);
        }
        all.into_iter().filter(move |(name, _)| *name > after).map(|(name, (entry, live))| InventoryNode {
            name: name.into(),
            presence: presence(entry, live),
            standing: self.standing(name, live),
            bmc: entry.and_then(|entry| entry.bmc.as_ref()).map(|bmc| bmc.kind().into()),
        })
    }
}

fn presence(expected: Option<&Expected>, live: Option<&Live>) -> Presence {
    let (Some(expected), Some(live)) = (expected, live) else {
        return if expected.is_some() { Presence::Absent } else { Presence::Unlisted };
    };
    let found = Found {
        mac: live.member.rnic.mac,
        cpus: live.join.cpus,
        memory: live.join.memory,
        kernel: live.image.as_ref().map(|image| image.kernel),
    };
    let differences = expected.differences(&found);
    if differences.is_empty() { Presence::Present } else { Presence::Differs(differences) }
}
