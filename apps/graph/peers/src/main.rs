//! The algorithms of the crate `graph` of crates.io, for comparison: `graph-peer FILE.wel SOURCE` obeys lines
//! on its standard input as the benchmark of our graph applications does.
#![forbid(unsafe_code)]

use graph::prelude::*;
use std::fmt::Write as _;
use std::io::{BufRead, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The iterations of PageRank.
const ITERATIONS: usize = 20;
/// The width of a bucket of weights from 1 to 255.
const DELTA: f32 = 32.0;

/// Returns the edges of a file: the ends, and the weight.
fn read(file: &Path) -> Vec<(u32, u32, f32)> {
    let text = std::fs::read_to_string(file).expect("the file of the graph");
    let edge = |line: &str| {
        let mut fields = line.split(' ').map(|field| field.parse::<u32>().expect("a number"));
        let mut next = || fields.next().expect("three numbers");
        (next(), next(), next() as f32)
    };
    text.lines().map(edge).collect()
}

/// Returns each edge in both directions.
fn both(edges: &[(u32, u32, f32)]) -> impl Iterator<Item = (u32, u32, f32)> {
    edges.iter().flat_map(|(a, b, weight)| [(*a, *b, *weight), (*b, *a, *weight)])
}

/// Runs the algorithm. Returns the seconds, and the result as text.
type Algorithm = Box<dyn FnMut() -> (f64, String)>;

/// Returns a line for each vertex.
fn lines<T: std::fmt::Display>(values: impl Iterator<Item = T>) -> String {
    let mut text = String::new();
    for (vertex, value) in values.enumerate() {
        writeln!(text, "{vertex} {value}").expect("memory");
    }
    text
}

/// Loads the graph as an algorithm wants it.
fn load(edges: &[(u32, u32, f32)], name: &str, source: usize) -> Algorithm {
    match name {
        "pagerank" => {
            let pairs = both(edges).map(|(a, b, _)| (a, b));
            let graph: DirectedCsrGraph<u32> =
                GraphBuilder::new().csr_layout(CsrLayout::Sorted).edges(pairs).build();
            Box::new(move || {
                let begun = Instant::now();
                let (ranks, ..) = page_rank(&graph, PageRankConfig::new(ITERATIONS, 0.0, 0.85));
                (begun.elapsed().as_secs_f64(), lines(ranks.into_iter()))
            })
        }
        "cc" => {
            let pairs = both(edges).map(|(a, b, _)| (a, b));
            let graph: DirectedCsrGraph<u32> =
                GraphBuilder::new().csr_layout(CsrLayout::Sorted).edges(pairs).build();
            Box::new(move || {
                let begun = Instant::now();
                let found = wcc_afforest(&graph, WccConfig::default());
                (begun.elapsed().as_secs_f64(), lines(found.to_vec().into_iter()))
            })
        }
        "sssp" => {
            let triples = both(edges);
            let graph: DirectedCsrGraph<u32, (), f32> =
                GraphBuilder::new().csr_layout(CsrLayout::Sorted).edges_with_values(triples).build();
            Box::new(move || {
                let begun = Instant::now();
                let found = delta_stepping(&graph, DeltaSteppingConfig::new(source, DELTA));
                let seconds = begun.elapsed().as_secs_f64();
                let mut text = String::new();
                let lengths = found.into_iter().map(|length| length.into_inner()).enumerate();
                for (vertex, length) in lengths.filter(|(_, length)| *length != f32::MAX) {
                    writeln!(text, "{vertex} {length}").expect("memory");
                }
                (seconds, text)
            })
        }
        "tc" => {
            let pairs = edges.iter().map(|(a, b, _)| (*a, *b));
            let mut graph: UndirectedCsrGraph<u32> =
                GraphBuilder::new().csr_layout(CsrLayout::Deduplicated).edges(pairs).build();
            Box::new(move || {
                let begun = Instant::now();
                // A graph that is in order already stays as it is.
                relabel_graph(&mut graph);
                let total = global_triangle_count(&graph);
                (begun.elapsed().as_secs_f64(), format!("{total}\n"))
            })
        }
        _ => panic!("{name:?} is no algorithm of the crate"),
    }
}

fn main() {
    let mut given = std::env::args().skip(1);
    let file = PathBuf::from(given.next().expect("the file of the graph"));
    let source = given.next().expect("a vertex").parse().expect("a number");
    let edges = read(&file);
    println!("edges {}", edges.len());
    let (mut loaded, mut result): (Option<(String, Algorithm)>, _) = (None, String::new());
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        match line.split_once(' ') {
            Some(("run", name)) => {
                if loaded.as_ref().is_none_or(|(of, _)| of != name) {
                    drop(loaded.take());
                    loaded = Some((name.to_owned(), load(&edges, name, source)));
                }
                if let Some((_, algorithm)) = &mut loaded {
                    let (seconds, text) = algorithm();
                    result = text;
                    println!("time {seconds}");
                }
            }
            Some(("result", file)) => {
                std::fs::write(file, &result).expect("the file of the result");
                println!("written");
            }
            _ => panic!("{line:?} is no command"),
        }
        std::io::stdout().flush().expect("standard output");
    }
}
