//! One node's part of a graph.

use crate::edge::{Edge, filled, with_room};
use alloc::vec::Vec;
use core::ops::Range;
use runtime::JobError;

/// One node's part of a graph: its vertices, the edges to them, and the lists by which signals are
/// exchanged.
///
/// A *slot* is the number of a vertex whose signal this node knows: own vertices in ascending order of
/// their identifiers come first, then ghosts, by owner and identifier. A *target* is the number of a vertex
/// for which this node adds up signals: own vertices come first, then hubs of other nodes, by owner and
/// identifier.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// The identifiers of the own vertices, ascending.
    pub ids: Vec<u64>,
    /// The number of edges from each own vertex, in the whole graph.
    pub out_degrees: Vec<u32>,
    /// The number of vertices of the whole graph.
    pub vertices: u64,
    /// The number of edges of the whole graph.
    pub edges: u64,
    /// The slots of ghosts, by the owner's rank.
    pub(crate) ghosts: Vec<Range<usize>>,
    /// The own vertices that are ghosts on another node, by its rank, ascending.
    pub(crate) lent: Vec<Vec<u32>>,
    /// The targets that are hubs of another node, by its rank.
    pub(crate) cuts: Vec<Range<usize>>,
    /// The own hubs for which another node adds up signals, by its rank, ascending.
    pub(crate) hubs: Vec<Vec<u32>>,
    /// The edges by target.
    pub(crate) incoming: Adjacency,
}

/// Lists of neighbours, one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adjacency {
    /// The begin of each list, and the end of the last.
    pub(crate) offsets: Vec<u32>,
    pub(crate) neighbours: Vec<u32>,
    /// The weight of each edge; empty if all weights are 1.
    pub(crate) weights: Vec<u32>,
}

impl Adjacency {
    /// Returns the number of lists.
    pub(crate) fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Returns the positions of a list's elements.
    pub(crate) fn range(&self, list: usize) -> Range<usize> {
        match self.offsets.get(list..list + 2) {
            Some([begin, end]) => *begin as usize..*end as usize,
            _ => 0..0,
        }
    }

    /// Returns the neighbours in a list.
    pub(crate) fn of(&self, list: usize) -> &[u32] {
        self.neighbours.get(self.range(list)).unwrap_or_default()
    }

    /// Returns the neighbours in a list with the weights.
    pub(crate) fn weighted(&self, list: usize) -> impl Iterator<Item = (u32, u32)> {
        let range = self.range(list);
        let weights = self.weights.get(range.clone()).unwrap_or_default();
        let neighbours = self.neighbours.get(range).unwrap_or_default();
        neighbours.iter().enumerate().map(|(at, n)| (*n, weights.get(at).copied().unwrap_or(1)))
    }

    /// Returns the lists the other way round: for each of `slots` neighbours the lists that it is in,
    /// ascending.
    pub(crate) fn reversed(&self, slots: usize) -> Result<Self, JobError> {
        let mut offsets = filled(0u32, slots + 1)?;
        for neighbour in &self.neighbours {
            if let Some(count) = offsets.get_mut(*neighbour as usize + 1) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for offset in &mut offsets {
            sum += *offset;
            *offset = sum;
        }
        let mut next: Vec<u32> = with_room(slots)?;
        next.extend_from_slice(offsets.get(..slots).unwrap_or_default());
        let mut neighbours = filled(0u32, self.neighbours.len())?;
        let mut weights = filled(0u32, self.weights.len())?;
        for list in 0..self.len() {
            for (neighbour, weight) in self.weighted(list) {
                let Some(at) = next.get_mut(neighbour as usize) else { continue };
                if let Some(into) = neighbours.get_mut(*at as usize) {
                    *into = list as u32;
                }
                if let Some(into) = weights.get_mut(*at as usize) {
                    *into = weight;
                }
                *at += 1;
            }
        }
        Ok(Self { offsets, neighbours, weights })
    }
}

impl Part {
    /// Returns the number of own vertices.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns true if the node owns no vertex.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the number of edges that this node holds.
    #[must_use]
    pub fn held_edges(&self) -> usize {
        self.incoming.neighbours.len()
    }

    /// Returns the number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.ghosts.last().map_or(self.len(), |last| last.end)
    }

    /// Returns the most bytes that arrive from each node in a superstep, by rank.
    #[must_use]
    pub fn rooms(&self) -> Vec<usize> {
        let words = self.ghosts.iter().zip(&self.hubs).map(|(ghosts, hubs)| ghosts.len() + hubs.len());
        words.map(crate::signals::longest).collect()
    }

    /// Makes the lists of edges. `edges` are those to own vertices and to hubs of other nodes, in order;
    /// `ghosts` the identifiers of the ghosts by slot, `hubs` those of the other nodes' hubs by target.
    pub(crate) fn connect(
        &mut self,
        edges: &[Edge],
        ghosts: &[u64],
        hubs: &[u64],
        weights: bool,
    ) -> Result<(), JobError> {
        let slots = self.ids.len() + ghosts.len();
        if slots.max(edges.len()) >= u32::MAX as usize {
            return Err(JobError::Refused("a node's part of the graph has 2^32 vertices or edges".into()));
        }
        // The hubs of other nodes lie below and above the own vertices.
        let own_first = self.ids.first().copied().unwrap_or(u64::MAX);
        let below = edges.partition_point(|edge| edge.to < own_first);
        let end = match self.ids.last() {
            Some(last) => edges.partition_point(|edge| edge.to <= *last),
            None => below,
        };
        let parts =
            [below..end, 0..below, end..edges.len()].map(|range| edges.get(range).unwrap_or_default());
        let targets = self.ids.iter().chain(hubs);
        let incoming = &mut self.incoming;
        incoming.offsets = with_room(self.ids.len() + hubs.len() + 1)?;
        incoming.neighbours = with_room(edges.len())?;
        if weights {
            incoming.weights = with_room(edges.len())?;
        }
        incoming.offsets.push(0);
        let mut rest = parts.into_iter().flatten().peekable();
        for target in targets {
            // The sources of a target ascend, so each search begins behind the last found.
            let (mut own, mut other) = (0, 0);
            while let Some(edge) = rest.next_if(|edge| edge.to == *target) {
                let slot = match seek(&self.ids, &mut own, edge.from) {
                    Some(slot) => slot,
                    None => self.ids.len() + seek(ghosts, &mut other, edge.from).unwrap_or(0),
                };
                incoming.neighbours.push(slot as u32);
                if weights {
                    incoming.weights.push(edge.weight);
                }
            }
            incoming.offsets.push(incoming.neighbours.len() as u32);
        }
        Ok(())
    }
}

/// Returns the position of `id` in the ascending list, from `from` on, and sets `from` to it.
fn seek(list: &[u64], from: &mut usize, id: u64) -> Option<usize> {
    let mut step = 1;
    while list.get(*from + step).is_some_and(|there| *there <= id) {
        *from += step;
        step *= 2;
    }
    let near = list.get(*from..list.len().min(*from + step))?;
    let at = near.partition_point(|there| *there < id);
    (near.get(at) == Some(&id)).then(|| {
        *from += at;
        *from
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_ascending_order() {
        let list: Vec<u64> = (0..100).map(|n| n * 3).collect();
        for stride in [1, 2, 7, 50] {
            let mut from = 0;
            for id in (0..300).step_by(stride) {
                let expected = (id % 3 == 0).then_some(id as usize / 3);
                assert_eq!(seek(&list, &mut from, id), expected, "{stride} {id}");
            }
        }
        assert_eq!(seek(&[], &mut 0, 1), None);
    }

    #[test]
    fn lists_are_reversed() {
        let lists = Adjacency {
            offsets: alloc::vec![0, 2, 2, 5],
            neighbours: alloc::vec![1, 3, 0, 1, 2],
            weights: alloc::vec![10, 30, 2, 12, 22],
        };
        let reversed = lists.reversed(4).unwrap();
        assert_eq!(reversed.offsets, [0, 1, 3, 4, 5]);
        assert_eq!(reversed.neighbours, [2, 0, 2, 2, 0]);
        assert_eq!(reversed.weights, [2, 10, 12, 22, 30]);
        assert_eq!(reversed.reversed(3).unwrap().neighbours, lists.neighbours);
    }
}
