//! The members that have not yet confirmed the departure of another.

use crate::{Incarnation, NodeId};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// The ended incarnations that some member has not yet confirmed with
/// [`LeftSeen`](crate::ToManager::LeftSeen). The manager keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Departures(BTreeMap<(NodeId, Incarnation), BTreeSet<NodeId>>);

impl Departures {
    /// Records that an incarnation has ended and that `members` are told. Returns the incarnations that all
    /// members have now confirmed: the departed member's confirmations are no longer needed, and if there are
    /// no members, its own departure needs none either.
    #[must_use]
    pub fn begin(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        members: impl IntoIterator<Item = NodeId>,
    ) -> Vec<(NodeId, Incarnation)> {
        self.0.values_mut().for_each(|missing| {
            missing.remove(&node);
        });
        self.0.insert((node, incarnation), members.into_iter().collect());
        self.take_settled()
    }

    /// Records that a member has destroyed its queue pairs to an ended incarnation. Returns that incarnation
    /// if all members have now confirmed it.
    #[must_use]
    pub fn seen(&mut self, by: NodeId, node: NodeId, incarnation: Incarnation) -> Vec<(NodeId, Incarnation)> {
        let ended = (node, incarnation);
        let Some(missing) = self.0.get_mut(&ended) else { return Vec::new() };
        missing.remove(&by);
        if !missing.is_empty() {
            return Vec::new();
        }
        self.0.remove(&ended);
        alloc::vec![ended]
    }

    /// Returns the given ended incarnations as not confirmed by any of `members`, and those that need no
    /// confirmation because there are no members.
    #[must_use]
    pub fn restore(
        ended: Vec<(NodeId, Incarnation)>,
        members: &BTreeSet<NodeId>,
    ) -> (Self, Vec<(NodeId, Incarnation)>) {
        let mut restored = Self(ended.into_iter().map(|ended| (ended, members.clone())).collect());
        let settled = restored.take_settled();
        (restored, settled)
    }

    /// Returns the ended incarnations that are not confirmed by all.
    #[must_use]
    pub fn all(&self) -> Vec<(NodeId, Incarnation)> {
        self.0.keys().copied().collect()
    }

    /// Returns the number of ended incarnations that are not confirmed by all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if all ended incarnations are confirmed by all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the members that have not confirmed the end of the oldest unconfirmed incarnation.
    #[must_use]
    pub fn slowest(&self) -> Vec<NodeId> {
        let oldest = self.0.iter().min_by_key(|((_, incarnation), _)| *incarnation);
        oldest.map(|(_, missing)| missing.iter().copied().collect()).unwrap_or_default()
    }

    fn take_settled(&mut self) -> Vec<(NodeId, Incarnation)> {
        let settled: Vec<_> = self.0.iter().filter(|(_, m)| m.is_empty()).map(|(ended, _)| *ended).collect();
        settled.iter().for_each(|ended| {
            self.0.remove(ended);
        });
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_settled_when_all_have_confirmed_it_or_departed_themselves() {
        let mut departures = Departures::default();
        let node = NodeId;
        assert_eq!(departures.begin(node(1), Incarnation(10), [node(2), node(3)]), []);
        assert_eq!((departures.len(), departures.is_empty()), (1, false));
        assert_eq!(departures.slowest(), [node(2), node(3)]);
        assert_eq!(departures.seen(node(2), node(1), Incarnation(10)), []);
        assert_eq!(departures.slowest(), [node(3)]);
        // A repeated confirmation, and one of an incarnation that never ended.
        assert_eq!(departures.seen(node(2), node(1), Incarnation(10)), []);
        assert_eq!(departures.seen(node(2), node(9), Incarnation(1)), []);
        // Node 3 dies silently; only node 2 has to confirm that.
        assert_eq!(departures.begin(node(3), Incarnation(11), [node(2)]), [(node(1), Incarnation(10))]);
        assert_eq!(departures.seen(node(2), node(3), Incarnation(11)), [(node(3), Incarnation(11))]);
        assert_eq!(departures.begin(node(2), Incarnation(12), []), [(node(2), Incarnation(12))]);
        assert_eq!(departures, Departures::default());
    }
}
