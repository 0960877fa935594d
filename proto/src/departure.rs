//! Who still has to see that a member is gone.

use crate::{Incarnation, NodeId};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// The ended lives of which some member has not yet said [`LeftSeen`](crate::ToManager::LeftSeen). Kept by whoever acts as the
/// manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Departures(BTreeMap<(NodeId, Incarnation), BTreeSet<NodeId>>);

impl Departures {
    /// A life has ended and `members` are told. Gives the lives that are settled by that: what the departed member had not
    /// seen holds nobody up any more, and if there are no members its own life is settled too.
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

    /// A member has destroyed its queue pairs to that life. Gives the lives that are settled by that.
    #[must_use]
    pub fn seen(&mut self, by: NodeId, node: NodeId, incarnation: Incarnation) -> Vec<(NodeId, Incarnation)> {
        let life = (node, incarnation);
        let Some(missing) = self.0.get_mut(&life) else { return Vec::new() };
        missing.remove(&by);
        if !missing.is_empty() {
            return Vec::new();
        }
        self.0.remove(&life);
        alloc::vec![life]
    }

    /// Ended lives that are not settled.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether all ended lives are settled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Of the ended lives that are not settled, the one with the lowest number: the members that have not seen its end.
    #[must_use]
    pub fn slowest(&self) -> Vec<NodeId> {
        let oldest = self.0.iter().min_by_key(|((_, incarnation), _)| *incarnation);
        oldest.map(|(_, missing)| missing.iter().copied().collect()).unwrap_or_default()
    }

    fn take_settled(&mut self) -> Vec<(NodeId, Incarnation)> {
        let settled: Vec<_> = self.0.iter().filter(|(_, m)| m.is_empty()).map(|(life, _)| *life).collect();
        settled.iter().for_each(|life| {
            self.0.remove(life);
        });
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_settled_when_all_have_seen_or_are_gone_themselves() {
        let mut departures = Departures::default();
        let node = NodeId;
        assert_eq!(departures.begin(node(1), Incarnation(10), [node(2), node(3)]), []);
        assert_eq!((departures.len(), departures.is_empty()), (1, false));
        assert_eq!(departures.slowest(), [node(2), node(3)]);
        assert_eq!(departures.seen(node(2), node(1), Incarnation(10)), []);
        assert_eq!(departures.slowest(), [node(3)]);
        // Said twice, and of a life that never ended.
        assert_eq!(departures.seen(node(2), node(1), Incarnation(10)), []);
        assert_eq!(departures.seen(node(2), node(9), Incarnation(1)), []);
        // Node 3 dies without a word; only node 2 is left to see that.
        assert_eq!(departures.begin(node(3), Incarnation(11), [node(2)]), [(node(1), Incarnation(10))]);
        assert_eq!(departures.seen(node(2), node(3), Incarnation(11)), [(node(3), Incarnation(11))]);
        assert_eq!(departures.begin(node(2), Incarnation(12), []), [(node(2), Incarnation(12))]);
        assert_eq!(departures, Departures::default());
    }
}
