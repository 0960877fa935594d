//! References: the plainest computation of each result, on one node and in floating point.

use super::nodes::Given;
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

/// Returns all vertices.
pub(super) fn vertices(graph: &Given) -> BTreeSet<u64> {
    let ends = graph.edges.iter().flat_map(|(from, to, _)| [*from, *to]);
    ends.chain(graph.vertices.iter().copied()).collect()
}

/// Returns the least weight of each edge.
fn edges(graph: &Given) -> BTreeMap<(u64, u64), u32> {
    let mut edges = BTreeMap::new();
    for (from, to, weight) in &graph.edges {
        let least = edges.entry((*from, *to)).or_insert(*weight);
        *least = (*weight).min(*least);
    }
    edges
}

/// Returns the rank of each vertex after some iterations.
pub(super) fn pagerank(graph: &Given, iterations: u32) -> BTreeMap<u64, f64> {
    let (vertices, edges) = (vertices(graph), edges(graph));
    let all = vertices.len() as f64;
    let mut out: BTreeMap<u64, Vec<u64>> = vertices.iter().map(|vertex| (*vertex, Vec::new())).collect();
    edges.keys().for_each(|(from, to)| out.get_mut(from).unwrap().push(*to));
    let mut ranks: BTreeMap<u64, f64> = vertices.iter().map(|vertex| (*vertex, 1.0 / all)).collect();
    for _ in 0..iterations {
        let dangling: f64 = ranks.iter().filter(|(vertex, _)| out[vertex].is_empty()).map(|(_, r)| r).sum();
        let base = 0.15 / all + 0.85 * dangling / all;
        let mut new: BTreeMap<u64, f64> = vertices.iter().map(|vertex| (*vertex, base)).collect();
        for (from, targets) in &out {
            let part = 0.85 * ranks[from] / targets.len() as f64;
            targets.iter().for_each(|to| *new.get_mut(to).unwrap() += part);
        }
        ranks = new;
    }
    ranks
}

/// Returns the least distance of each vertex from the source, `u64::MAX` where there is no path. With
/// `unit`, each edge has the length 1.
pub(super) fn distances(graph: &Given, source: u64, unit: bool) -> BTreeMap<u64, u64> {
    let mut distances: BTreeMap<u64, u64> =
        vertices(graph).iter().map(|vertex| (*vertex, u64::MAX)).collect();
    if let Some(first) = distances.get_mut(&source) {
        *first = 0;
    }
    let edges = edges(graph);
    // Bellman and Ford.
    loop {
        let mut changed = false;
        for ((from, to), weight) in &edges {
            let length = if unit { 1 } else { u64::from(*weight) };
            let there = distances[from].saturating_add(length);
            if distances[from] != u64::MAX && there < distances[to] {
                distances.insert(*to, there);
                changed = true;
            }
        }
        if !changed {
            return distances;
        }
    }
}

/// Returns the least vertex of each vertex's component.
pub(super) fn components(graph: &Given) -> BTreeMap<u64, u64> {
    let mut parents: BTreeMap<u64, u64> = vertices(graph).iter().map(|vertex| (*vertex, *vertex)).collect();
    let root = |parents: &BTreeMap<u64, u64>, mut vertex: u64| {
        while parents[&vertex] != vertex {
            vertex = parents[&vertex];
        }
        vertex
    };
    for (a, b, _) in &graph.edges {
        let (a, b) = (root(&parents, *a), root(&parents, *b));
        parents.insert(a.max(b), a.min(b));
    }
    parents.keys().map(|vertex| (*vertex, root(&parents, *vertex))).collect()
}

/// Returns the number of triangles, and of those at each vertex.
pub(super) fn triangles(graph: &Given) -> (u64, BTreeMap<u64, u64>) {
    let mut beside: BTreeMap<u64, BTreeSet<u64>> =
        vertices(graph).iter().map(|vertex| (*vertex, BTreeSet::new())).collect();
    for (a, b, _) in graph.edges.iter().filter(|(a, b, _)| a != b) {
        beside.get_mut(a).unwrap().insert(*b);
        beside.get_mut(b).unwrap().insert(*a);
    }
    let mut each: BTreeMap<u64, u64> = BTreeMap::new();
    let mut total = 0;
    for (a, near) in &beside {
        let pairs = near.iter().flat_map(|b| near.range(b..).skip(1).map(move |c| (b, c)));
        let count = pairs.filter(|(b, c)| beside[b].contains(c)).count() as u64;
        each.insert(*a, count);
        total += count;
    }
    (total / 3, each)
}
