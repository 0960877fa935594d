//! One node's part of a graph.

use crate::edge::{Edge, filled, with_room};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Range;
use runtime::JobError;

/// One node's part of a graph: its vertices, the edges to them, and the lists by which signals are
/// exchanged.
///
/// A *slot* is the number of a vertex whose signal this node knows: own vertices come first, then ghosts by
/// owner. Among these the vertices with most edges come first, so that the signals that are read most often
/// share few lines of the cache. A *target* is the number of a vertex for which this node adds up signals:
/// own vertices come first, with the same numbers, then hubs of other nodes, by owner and identifier.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// The identifier of each own vertex.
    pub ids: Vec<u64>,
    /// The own vertices in ascending order of their identifiers.
    pub order: Vec<u32>,
    /// The number of edges from each own vertex, in the whole graph.
    pub out_degrees: Vec<u32>,
    /// The number of vertices of the whole graph.
    pub vertices: u64,
    /// The number of edges of the whole graph.
    pub edges: u64,
    /// The slots of ghosts, by the owner's rank.
    pub(crate) ghosts: Vec<Range<usize>>,
    /// The own vertices that are ghosts on another node, by its rank, in the order of their slots there.
    pub(crate) lent: Vec<Vec<u32>>,
    /// The targets that are hubs of another node, by its rank.
    pub(crate) cuts: Vec<Range<usize>>,
    /// The own hubs for which another node adds up signals, by its rank, in the order of their targets there.
    pub(crate) hubs: Vec<Vec<u32>>,
    /// The edges by target.
    pub(crate) incoming: Adjacency,
    /// The edges by slot, if [`Input::outgoing`](crate::Input::outgoing) asks for them.
    pub(crate) outgoing: Adjacency,
}

/// The numbers of vertices whose identifiers are known.
pub(crate) struct Numbers {
    /// The identifiers, ascending.
    pub(crate) ids: Vec<u64>,
    /// The number of each, counted from 0.
    pub(crate) numbers: Vec<u32>,
}

impl Numbers {
    /// Numbers vertices, which ascend: by rank of the owner, then by descending number of edges.
    pub(crate) fn new(ids: Vec<u64>, edges: &[u32], owner: impl Fn(u64) -> usize) -> Result<Self, JobError> {
        let mut sorted = with_room(ids.len())?;
        sorted.extend(
            ids.iter().zip(edges).zip(0u32..).map(|((id, edges), at)| (owner(*id), Reverse(*edges), at)),
        );
        sorted.sort_unstable();
        let mut numbers = filled(0, ids.len())?;
        for ((_, _, at), number) in sorted.into_iter().zip(0..) {
            if let Some(into) = numbers.get_mut(at as usize) {
                *into = number;
            }
        }
        Ok(Self { ids, numbers })
    }

    /// Returns the number of a vertex. Searches from position `from` on, which moves to the vertex.
    fn seek(&self, from: &mut usize, id: u64) -> Option<u32> {
        self.numbers.get(seek(&self.ids, from, id)?).copied()
    }

    /// Returns a list of the same length, each element of which is at the place of its vertex.
    pub(crate) fn placed<T: Copy + Default>(&self, list: &[T]) -> Result<Vec<T>, JobError> {
        let mut placed = filled(T::default(), list.len())?;
        for (element, number) in list.iter().zip(&self.numbers) {
            if let Some(into) = placed.get_mut(*number as usize) {
                *into = *element;
            }
        }
        Ok(placed)
    }
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

    /// Returns the number of edges in some lists.
    pub(crate) fn edges_of(&self, lists: &[u32]) -> usize {
        lists.iter().map(|list| self.range(*list as usize).len()).sum()
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

    /// Returns the own vertices with their identifiers, which ascend.
    pub fn in_order(&self) -> impl Iterator<Item = (u64, usize)> {
        self.order.iter().filter_map(|at| Some((*self.ids.get(*at as usize)?, *at as usize)))
    }

    /// Returns the number of an own vertex.
    #[must_use]
    pub fn find(&self, id: u64) -> Option<usize> {
        let of = |at: &u32| self.ids.get(*at as usize).copied();
        let place = self.order.binary_search_by_key(&Some(id), of).ok()?;
        self.order.get(place).map(|at| *at as usize)
    }

    /// Makes the lists of edges. `edges` are those to own vertices and to hubs of other nodes, in order;
    /// `ghosts` are numbered without the own vertices; `hubs` are the identifiers of the other nodes' hubs by
    /// target.
    pub(crate) fn connect(
        &mut self,
        edges: &[Edge],
        own: &Numbers,
        ghosts: &Numbers,
        hubs: &[u64],
        weights: bool,
    ) -> Result<(), JobError> {
        let slots = own.ids.len() + ghosts.ids.len();
        if slots.max(edges.len()) >= u32::MAX as usize {
            return Err(JobError::Refused("a node's part of the graph has 2^32 vertices or edges".into()));
        }
        let targets = own.ids.len() + hubs.len();
        let mut lists = with_room(targets)?;
        let mut at = 0;
        for list in edges.chunk_by(|a, b| a.to == b.to) {
            let Some(to) = list.first().map(|edge| edge.to) else { continue };
            let target = match own.seek(&mut at, to) {
                Some(target) => target as usize,
                None => own.ids.len() + hubs.partition_point(|hub| *hub < to),
            };
            lists.push((target, list));
        }
        lists.sort_unstable_by_key(|(target, _)| *target);
        let incoming = &mut self.incoming;
        incoming.offsets = with_room(targets + 1)?;
        incoming.neighbours = with_room(edges.len())?;
        if weights {
            incoming.weights = with_room(edges.len())?;
        }
        let mut sources = Vec::new();
        for (target, list) in lists {
            let begin = incoming.neighbours.len() as u32;
            // Targets without edges before this one have empty lists.
            incoming.offsets.resize(target + 1, begin);
            // The sources of a target ascend, so each search begins behind the last found.
            let (mut near, mut far) = (0, 0);
            sources.clear();
            sources.extend(list.iter().filter_map(|edge| {
                let ghost = |far| Some(ghosts.seek(far, edge.from)? + own.ids.len() as u32);
                let slot = own.seek(&mut near, edge.from).or_else(|| ghost(&mut far))?;
                Some((slot, edge.weight))
            }));
            sources.sort_unstable();
            incoming.neighbours.extend(sources.iter().map(|(slot, _)| *slot));
            if weights {
                incoming.weights.extend(sources.iter().map(|(_, weight)| *weight));
            }
        }
        incoming.offsets.resize(targets + 1, incoming.neighbours.len() as u32);
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
