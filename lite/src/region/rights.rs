//! The rights on a region: a row for all nodes, and rows of single nodes.

use crate::Permissions;
use alloc::collections::BTreeMap;
use proto::NodeId;
use serde::{Deserialize, Serialize};

/// The nodes whose rights are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grantee {
    /// All nodes, also those that were granted rights of their own.
    Everyone,
    /// One node, in its present incarnation.
    Node(NodeId),
}

impl From<NodeId> for Grantee {
    fn from(node: NodeId) -> Self {
        Self::Node(node)
    }
}

impl Grantee {
    /// Returns true if the change concerns the node.
    pub(crate) fn includes(self, node: NodeId) -> bool {
        self == Self::Everyone || self == Self::Node(node)
    }
}

/// The rows. The master's rights are not in them: it has all rights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rights {
    everyone: Permissions,
    nodes: BTreeMap<NodeId, Permissions>,
}

impl Rights {
    pub(crate) fn new(everyone: Permissions) -> Self {
        Self { everyone, nodes: BTreeMap::new() }
    }

    /// Returns the rights of a node on the region.
    pub(crate) fn of(&self, node: NodeId) -> Permissions {
        self.nodes.get(&node).copied().unwrap_or(self.everyone)
    }

    /// Returns true if some node has `right`.
    pub(crate) fn give(&self, right: Permissions) -> bool {
        self.everyone.contains(right) || self.nodes.values().any(|row| row.contains(right))
    }

    pub(crate) fn grant(&mut self, to: Grantee, rights: Permissions) {
        self.change(to, |row| row | rights);
    }

    pub(crate) fn revoke(&mut self, from: Grantee, rights: Permissions) {
        self.change(from, |row| row - rights);
    }

    fn change(&mut self, whose: Grantee, to: impl Fn(Permissions) -> Permissions) {
        match whose {
            Grantee::Node(node) => {
                let row = to(self.of(node));
                self.nodes.insert(node, row);
            }
            Grantee::Everyone => {
                self.everyone = to(self.everyone);
                self.nodes.values_mut().for_each(|row| *row = to(*row));
            }
        }
    }

    /// Handles the end of an incarnation: rights that were granted to the node alone end; rights that were
    /// revoked stay revoked.
    pub(crate) fn forget(&mut self, node: NodeId) {
        if let Some(row) = self.nodes.get_mut(&node) {
            *row &= self.everyone;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const R: Permissions = Permissions::READ;
    const W: Permissions = Permissions::WRITE;

    #[test]
    fn rows() {
        let (a, b) = (NodeId(1), NodeId(2));
        let mut rights = Rights::new(R);
        rights.grant(a.into(), W);
        assert_eq!((rights.of(a), rights.of(b)), (R | W, R));
        assert!(rights.give(W) && !rights.give(Permissions::ATOMIC));
        rights.revoke(b.into(), R);
        rights.grant(Grantee::Everyone, Permissions::SHARE);
        let share = Permissions::SHARE;
        assert_eq!((rights.of(a), rights.of(b), rights.of(NodeId(3))), (R | W | share, share, R | share));
        rights.revoke(Grantee::Everyone, R);
        assert_eq!((rights.of(a), rights.of(NodeId(3))), (W | share, share));
        // A new incarnation of a node has no more rights than everyone, and one of a node that was denied
        // has fewer.
        rights.grant(Grantee::Everyone, Permissions::ATOMIC);
        rights.revoke(b.into(), Permissions::ATOMIC);
        rights.forget(a);
        rights.forget(b);
        assert_eq!((rights.of(a), rights.of(b)), (share | Permissions::ATOMIC, share));
    }
}
