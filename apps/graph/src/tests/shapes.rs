//! Graphs of known shapes.

use super::nodes::Given;
use crate::{Generator, Model};
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

/// Returns graphs of all kinds: none, loops, duplicates, vertices without edges, extreme identifiers and
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
        ("R-MAT", generated(Model::Rmat, 9, 6)),
    ]
}
