//! Compares the results of two sides.

use super::Algorithm;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;

/// The greatest accepted sum of the differences of ranks. The crate `graph` uses new ranks at once, so its
/// ranks after 20 iterations are nearer to their limits than ours.
const RANKS: f64 = 2e-3;

/// The numbers of a result, by vertex; a single number has no vertex.
pub(super) type Values = BTreeMap<u64, f64>;

/// Reads a result: a vertex and a number in each line, or one number.
pub(super) fn read(file: &Path) -> Result<Values> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let line = |line: &str| {
        let (vertex, value) = line.split_once(' ').unwrap_or(("0", line));
        Some((vertex.parse().ok()?, value.parse().ok()?))
    };
    let lines = text.lines().map(|text| line(text).with_context(|| format!("{text:?} is no result")));
    lines.collect()
}

/// Compares the results of an algorithm, which must agree.
pub(super) fn compare(algorithm: Algorithm, ours: &Path, theirs: &Path) -> Result<()> {
    agree(algorithm, &read(ours)?, &read(theirs)?)
}

fn agree(algorithm: Algorithm, ours: &Values, theirs: &Values) -> Result<()> {
    ensure!(!ours.is_empty(), "there is no result");
    ensure!(ours.keys().eq(theirs.keys()), "{} vertices and {} have values", ours.len(), theirs.len());
    match algorithm {
        Algorithm::PageRank => {
            let distance: f64 = ours.values().zip(theirs.values()).map(|(a, b)| (a - b).abs()).sum();
            ensure!(distance <= RANKS, "the ranks differ by {distance:e} in sum");
        }
        Algorithm::Cc => {
            // Labels may be any, but each of ours must stand for one of theirs.
            let (mut to, mut from) = (BTreeMap::new(), BTreeMap::new());
            for (vertex, (a, b)) in ours.keys().zip(ours.values().zip(theirs.values())) {
                let (a, b) = (a.to_bits(), b.to_bits());
                let same = *to.entry(a).or_insert(b) == b && *from.entry(b).or_insert(a) == a;
                ensure!(same, "vertex {vertex} is in another component");
            }
        }
        Algorithm::Bfs | Algorithm::Sssp | Algorithm::Tc => {
            let other = ours.iter().find(|(vertex, value)| theirs.get(vertex) != Some(value));
            ensure!(other.is_none(), "the values differ, first that of vertex {other:?}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values<const N: usize>(list: [f64; N]) -> Values {
        (0..).zip(list).collect()
    }

    #[test]
    fn results_that_differ_are_told() {
        let ok = |algorithm, a: &Values, b: &Values| agree(algorithm, a, b).is_ok();
        let (a, b) = (values([1.0, 1.0, 3.0]), values([7.0, 7.0, 1.0]));
        assert!(ok(Algorithm::Cc, &a, &b) && !ok(Algorithm::Bfs, &a, &b));
        assert!(!ok(Algorithm::Cc, &a, &values([7.0, 7.0, 7.0])));
        assert!(!ok(Algorithm::Cc, &values([1.0, 1.0, 1.0]), &b));
        assert!(ok(Algorithm::PageRank, &values([0.5, 0.5]), &values([0.5001, 0.4999])));
        assert!(!ok(Algorithm::PageRank, &values([0.5, 0.5]), &values([0.51, 0.49])));
        assert!(!ok(Algorithm::Tc, &values([1.0]), &values([1.0, 2.0])));
        assert!(!ok(Algorithm::Tc, &values([]), &values([])));
    }
}
