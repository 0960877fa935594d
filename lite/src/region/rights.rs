//! Who may do what with a region: a row for everyone, and rows of single nodes.

use crate::Permissions;
use alloc::collections::BTreeMap;
use proto::NodeId;
use serde::{Deserialize, Serialize};

/// Whose rights are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grantee {
    /// All nodes, also those with rights of their own.
    Everyone,
    /// One node, in its present life.
    Node(NodeId),
}

impl From<NodeId> for Grantee {
    fn from(node: NodeId) -> Self {
        Self::Node(node)
    }
}

impl Grantee {
    /// Whether that node is meant.
    pub(crate) fn includes(self, node: NodeId) -> bool {
        self == Self::Everyone || self == Self::Node(node)
    }
}

/// The rows. The master's rights are not in them: it has all.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    everyone: Permissions,
    nodes: BTreeMap<NodeId, Permissions>,
}

impl Rights {
    pub(crate) fn new(everyone: Permissions) -> Self {
        Self { everyone, nodes: BTreeMap::new() }
    }

    /// What a node may have.
    pub(crate) fn of(&self, node: NodeId) -> Permissions {
        self.nodes.get(&node).copied().unwrap_or(self.everyone)
    }

    /// Whether somebody may have `right`.
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

    /// A life of a node has ended: what was granted to it alone ends, what was taken from it does not.
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
        // A new life of a node has no more than everyone, and a new life of one that was denied has less.
        rights.grant(Grantee::Everyone, Permissions::ATOMIC);
        rights.revoke(b.into(), Permissions::ATOMIC);
        rights.forget(a);
        rights.forget(b);
        assert_eq!((rights.of(a), rights.of(b)), (share | Permissions::ATOMIC, share));
    }
}
