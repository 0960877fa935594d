//! Results against the references, for graphs and distributions of many kinds.

use super::nodes::{Given, Spread, Task};
use super::reference;
use super::shapes;
use crate::{ONE, PageRank, Program, Stop};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

/// Distributions that must not change a result.
fn spreads() -> Vec<Spread> {
    let mut spreads = Vec::new();
    for (nodes, cpus) in [(1, 1), (1, 2), (2, 1), (3, 2), (4, 1), (7, 3)] {
        for hub in [Some(2), Some(40)].into_iter().take(nodes) {
            spreads.push(Spread { nodes, cpus, hub });
        }
    }
    spreads
}

/// Returns the sum of the distances between ranks.
fn l1(ours: &BTreeMap<u64, u64>, theirs: &BTreeMap<u64, f64>) -> f64 {
    assert!(ours.keys().eq(theirs.keys()), "other vertices");
    ours.values().zip(theirs.values()).map(|(ours, theirs)| (*ours as f64 / ONE as f64 - theirs).abs()).sum()
}

/// Runs an algorithm with all distributions, which must agree to the bit, and returns its values.
fn agreed(graph: &Given, task: Task) -> BTreeMap<u64, u64> {
    let (mut first, mut rounds) = (None, None);
    for spread in spreads() {
        let (values, outcome) = graph.run(&spread, task);
        assert!(*first.get_or_insert_with(|| values.clone()) == values, "{spread:?}");
        // A vertex program has the same supersteps everywhere.
        if matches!(task, Task::PageRank(_) | Task::Bfs { .. }) {
            assert_eq!(*rounds.get_or_insert(outcome.rounds), outcome.rounds, "{spread:?}");
        }
    }
    first.unwrap()
}

#[test]
fn pagerank_is_near_the_reference_after_any_number_of_iterations() {
    for (name, graph) in shapes::all() {
        for iterations in [1, 2, 10, 50] {
            let ours = agreed(&graph, Task::PageRank(PageRank { stop: Stop::Iterations(iterations) }));
            let distance = l1(&ours, &reference::pagerank(&graph, iterations));
            assert!(distance <= 1e-9, "{name}, {iterations} iterations: {distance:e}");
        }
    }
}

#[test]
fn pagerank_converges_to_the_reference() {
    for (name, graph) in shapes::all() {
        let ours =
            agreed(&graph, Task::PageRank(PageRank { stop: Stop::Tolerance(ONE / 10_000_000_000_000) }));
        let distance = l1(&ours, &reference::pagerank(&graph, 300));
        assert!(distance <= 1e-9, "{name}: {distance:e}");
    }
}

#[test]
fn pagerank_that_does_not_converge_is_an_error() {
    let program = PageRank { stop: Stop::Tolerance(1) };
    let global = crate::Global { changed: 1, mass: 0, delta: 1 };
    assert_eq!(program.is_done(999, &global), Ok(false));
    assert!(program.is_done(1000, &global).is_err());
}

#[test]
fn components_are_exact() {
    for (name, graph) in shapes::all() {
        let graph = graph.undirected();
        assert!(agreed(&graph, Task::Components) == reference::components(&graph), "{name}");
    }
}

#[test]
fn searches_are_exact() {
    for (name, graph) in shapes::all() {
        for source in reference::vertices(&graph).into_iter().step_by(97).take(3) {
            for graph in [graph.clone(), graph.undirected()] {
                let levels = agreed(&graph, Task::Bfs { source });
                assert!(levels == reference::distances(&graph, source, true), "bfs of {name} from {source}");
                let lengths = agreed(&graph, Task::Sssp { source });
                assert!(
                    lengths == reference::distances(&graph, source, false),
                    "sssp of {name} from {source}"
                );
            }
        }
    }
}

#[test]
fn triangles_are_exact() {
    for (name, graph) in shapes::all() {
        let expected = reference::triangles(&graph);
        for nodes in 1..=4 {
            let spread = Spread { nodes, cpus: 1, hub: Some(u64::MAX) };
            assert!(graph.undirected().triangles(&spread) == expected, "{name} on {nodes} nodes");
        }
    }
}

/// Checks supersteps that follow only the edges from changed vertices: a path has one of these at a time.
#[test]
fn a_long_path_is_followed_to_its_end() {
    let graph = shapes::path(600);
    let (levels, outcome) = graph.run(&Spread { nodes: 3, cpus: 1, hub: None }, Task::Bfs { source: 0 });
    assert_eq!(levels.values().max(), Some(&599));
    assert_eq!((outcome.rounds, outcome.exchanges), (600, 601));
}

/// Checks that several nodes hold the edges of a star, although all of them lead to one vertex.
#[test]
fn the_edges_to_a_hub_are_spread() {
    let graph = shapes::star(1_000_000);
    for nodes in 2..=4 {
        let shares = graph.shares(&Spread { nodes, cpus: 1, hub: None });
        for share in [|of: &(usize, usize)| of.0, |of: &(usize, usize)| of.1] {
            let (least, most) = (shares.iter().map(share).min(), shares.iter().map(share).max());
            assert!(least.unwrap() * 5 >= most.unwrap() * 4, "{shares:?}");
        }
    }
}

fn any_graph() -> impl Strategy<Value = Given> {
    let id = prop_oneof![4 => 0..12u64, 1 => Just(u64::MAX), 1 => Just(u64::MAX - 1), 1 => 0..100_000u64];
    let weight = prop_oneof![4 => 0..10u32, 1 => Just(u32::MAX)];
    let edges = prop::collection::vec((id.clone(), id.clone(), weight), 0..60);
    (edges, prop::collection::vec(id, 0..4)).prop_map(|(edges, vertices)| Given { edges, vertices })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn any_graph_on_any_nodes(graph in any_graph(), nodes in 1..6usize, cpus in 1..4usize, hub in 1..6u64) {
        let spread = Spread { nodes, cpus, hub: Some(hub) };
        let (ranks, _) = graph.run(&spread, Task::PageRank(PageRank { stop: Stop::Iterations(10) }));
        prop_assert!(l1(&ranks, &reference::pagerank(&graph, 10)) <= 1e-9);
        if let Some(source) = reference::vertices(&graph).first().copied() {
            let (lengths, _) = graph.run(&spread, Task::Sssp { source });
            prop_assert_eq!(lengths, reference::distances(&graph, source, false));
        }
        let undirected = graph.undirected();
        prop_assert_eq!(undirected.run(&spread, Task::Components).0, reference::components(&graph));
        let whole = Spread { hub: Some(u64::MAX), ..spread };
        prop_assert_eq!(undirected.triangles(&whole), reference::triangles(&graph));
    }
}
