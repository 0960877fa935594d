//! The inventory against the members.

use super::members::Live;
use super::{ConnId, Core};
use crate::inventory::{Expected, Found, Inventory};
use proto::{InventoryNode, Presence, ToClient};
use std::collections::BTreeSet;

/// The length of a page of the inventory, in bytes.
const PAGE: usize = 256 << 10;

impl Core {
    /// Tells a client a page of the inventory against the members: those with names after `after`.
    pub(super) fn tell_inventory(&mut self, conn: ConnId, after: &str) {
        let Inventory(expected) = &*self.config.rules.inventory;
        let listed = expected.keys().map(String::as_str);
        let names: BTreeSet<&str> =
            listed.chain(self.members.0.values().map(|live| live.member.name.as_str())).collect();
        let (mut nodes, mut bytes, mut more) = (Vec::new(), 0, false);
        for name in names.into_iter().filter(|name| *name > after) {
            let (entry, live) = (expected.get(name), self.members.named(name));
            let node = InventoryNode {
                name: name.into(),
                presence: presence(entry, live),
                standing: self.standing(name, live),
                bmc: entry.and_then(|entry| entry.bmc.as_ref()).map(|bmc| bmc.kind().into()),
            };
            bytes += proto::encode(&node).len();
            if bytes > PAGE {
                more = true;
                break;
            }
            nodes.push(node);
        }
        self.tell_client(conn, ToClient::Inventory { nodes, more });
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
