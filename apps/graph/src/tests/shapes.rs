//! Graphs of known shapes.

use super::nodes::Given;
use crate::{Generator, Model};
use std::collections::BTreeMap;
use std::string::String;
use std::vec::Vec;

fn given(edges: Vec<(u64, u64, u32)>) -> Given {
    Given { edges, vertices: Vec::new() }
}

fn generated(model: Model, scale: u32, degree: u32) -> Given {
    let generator = Generator { model, scale, degree, seed: 7 };
    let edge = |number| {
        let edge = generator.edge(number);
        (edge.from, edge.to, edge.weight)
    };
    given((0..generator.edges()).map(edge).collect())
}

/// A path of `len` vertices.
pub(super) fn path(len: u64) -> Given {
    given((1..len).map(|vertex| (vertex - 1, vertex, 1)).collect())
}

/// A vertex to which edges lead from `leaves` others.
pub(super) fn star(leaves: u64) -> Given {
    given((0..leaves).map(|leaf| (leaf + 1_000_000, 7, 2)).collect())
}

/// The dependencies between the crates of this repository's lock file, which are numbered in their order there.
fn dependencies() -> Given {
    let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock")).unwrap();
    let crates: Vec<_> = lock.split("[[package]]").skip(1).collect();
    let named = |of: &str| {
        of.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"').map(String::from))
    };
    let numbers: BTreeMap<String, u64> = crates.iter().filter_map(|of| named(of)).zip(0..).collect();
    let mut edges = Vec::new();
    for of in &crates {
        let from = numbers[&named(of).unwrap()];
        let needed = of.lines().filter_map(|line| line.strip_prefix(" \"")?.split(['"', ' ']).next());
        edges.extend(needed.map(|needed| (from, numbers[needed], needed.len() as u32)));
    }
    assert!(edges.len() > 300, "the lock file has {} dependencies", edges.len());
    given(edges)
}

/// Returns graphs of all kinds: real data, none, loops, duplicates, vertices without edges, extreme identifiers and
/// weights.
pub(super) fn all() -> Vec<(&'static str, Given)> {
    let max = u64::MAX;
    let complete = (0..12).flat_map(|a| (0..12).map(move |b| (a * 1000, b * 1000, a as u32))).collect();
    let mut several = generated(Model::Uniform, 6, 1);
    several.vertices = (0..64).chain([max]).collect();
    std::vec![
        ("no graph", given(Vec::new())),
        ("one loop", given([(5, 5, 3)].into())),
        ("vertices alone", Given { edges: Vec::new(), vertices: [3, max, 0].into() }),
        ("one edge", given([(max, 0, u32::MAX)].into())),
        (
            "duplicates",
            given([(1, 2, 9), (1, 2, 4), (2, 1, 0), (1, 2, 7), (3, 3, 1), (2, 3, u32::MAX)].into())
        ),
        ("path", path(60)),
        ("star", star(300)),
        ("complete", given(complete)),
        ("several components", several),
        ("uniform", generated(Model::Uniform, 8, 4)),
        ("dependencies of crates", dependencies()),
        ("R-MAT", generated(Model::Rmat, 9, 6)),
    ]
}
