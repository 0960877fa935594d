//! The file of the graph: all sides of a comparison read the same.

use graph::{Generator, Model};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// An edge: its ends and its weight. Each edge leads in both directions, and is there once.
pub(crate) type Pair = (u32, u32, u32);

/// The size of a written graph.
pub(crate) struct Written {
    pub(crate) vertices: usize,
    pub(crate) edges: usize,
    /// A vertex from which to search.
    pub(crate) source: u32,
}

/// Writes an R-MAT graph without loops, duplicates and gaps in the numbers of vertices: `FILE.el` without
/// weights, `FILE.wel` with weights.
pub(crate) fn write(file: &Path, scale: u32, seed: u64) -> Written {
    let generator = Generator { model: Model::Rmat, scale, degree: 16, seed };
    let mut edges: Vec<(u64, u64, u32)> = (0..generator.edges())
        .map(|number| generator.edge(number))
        .filter(|edge| edge.from != edge.to)
        .map(|edge| (edge.from.min(edge.to), edge.from.max(edge.to), edge.weight))
        .collect();
    edges.sort_unstable();
    edges.dedup_by_key(|(a, b, _)| (*a, *b));
    let mut ids: Vec<u64> = edges.iter().flat_map(|(a, b, _)| [*a, *b]).collect();
    ids.sort_unstable();
    ids.dedup();
    let places: HashMap<u64, u32> = ids.iter().copied().zip(0..).collect();
    let open = |ending: &str| {
        let path = format!("{}.{ending}", file.display());
        BufWriter::with_capacity(1 << 20, File::create(path).unwrap())
    };
    let (mut plain, mut weighted) = (open("el"), open("wel"));
    for (a, b, weight) in &edges {
        let (a, b) = (places[a], places[b]);
        writeln!(plain, "{a} {b}").unwrap();
        writeln!(weighted, "{a} {b} {weight}").unwrap();
    }
    plain.flush().unwrap();
    weighted.flush().unwrap();
    let source = (0..).map(|number| generator.edge(number)).find(|edge| edge.from != edge.to).unwrap().from;
    Written { vertices: ids.len(), edges: edges.len(), source: places[&source] }
}

/// Reads the edges of a file with weights.
pub(crate) fn read(file: &Path) -> Vec<Pair> {
    let text = std::fs::read(file).unwrap();
    let mut edges = Vec::new();
    let parsed = graph::parse_edges(&text, graph::Format { weights: true }, |from, to, weight| {
        edges.push((from as u32, to as u32, weight));
    });
    parsed.unwrap_or_else(|fault| panic!("{}: byte {}: {}", file.display(), fault.offset, fault.reason));
    edges
}
