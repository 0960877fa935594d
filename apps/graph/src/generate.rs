//! Graphs that are computed and not read: each node makes its part of the edges, in any order.

use crate::Edge;
use core::ops::Range;

/// The greatest scale: the vertices have that many bits.
pub(crate) const MAX_SCALE: u32 = 32;

/// The distribution of the edges of a generated graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// R-MAT with the parameters of Graph500: A 0.57, B 0.19, C 0.19, D 0.05.
    Rmat,
    /// Each end of an edge is a random vertex, each vertex with the same probability.
    Uniform,
}

/// A generated graph of 2^`scale` vertices, of which those without an edge do not occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generator {
    /// The distribution.
    pub model: Model,
    /// The binary logarithm of the number of vertices, at most 32.
    pub scale: u32,
    /// The number of edges for each vertex.
    pub degree: u32,
    /// The seed.
    pub seed: u64,
}

/// Returns a random number that depends on `x` (the finaliser of SplitMix64, Steele, Lea, Flood 2014).
pub(crate) fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Graph500's parameters in parts of 2^32: A, A + B, A + B + C.
const QUADRANTS: [u64; 3] = [2_448_131_359, 3_264_175_145, 4_080_218_931];
/// The number of rounds of the Feistel network that permutes the vertices.
const ROUNDS: u64 = 4;

impl Generator {
    /// Returns the number of edges, duplicates included.
    #[must_use]
    pub fn edges(&self) -> u64 {
        u64::from(self.degree) << self.scale
    }

    /// Returns the numbers of the edges that a node makes.
    #[must_use]
    pub fn share(&self, rank: usize, nodes: usize) -> Range<u64> {
        let at = |rank: usize| (u128::from(self.edges()) * rank as u128 / nodes.max(1) as u128) as u64;
        at(rank)..at(rank + 1)
    }

    /// Returns edge `number`. Its weight is from 1 to 255.
    #[must_use]
    pub fn edge(&self, number: u64) -> Edge {
        let random = |lane: u64| mix(mix(self.seed ^ lane.rotate_left(32)).wrapping_add(number));
        let (from, to) = match self.model {
            Model::Uniform => (random(1) & self.mask(), random(2) & self.mask()),
            Model::Rmat => {
                let (mut from, mut to) = (0, 0);
                for level in 0..self.scale {
                    let draw = random(16 + u64::from(level)) >> 32;
                    let quadrant = QUADRANTS.iter().filter(|limit| draw >= **limit).count() as u64;
                    (from, to) = (from << 1 | quadrant >> 1, to << 1 | quadrant & 1);
                }
                (self.permuted(from), self.permuted(to))
            }
        };
        Edge { to, from, weight: (random(3) % 255) as u32 + 1 }
    }

    fn mask(&self) -> u64 {
        (1u64 << self.scale) - 1
    }

    /// Returns the new number of a vertex: a Feistel network on the bits of the scale, so that no two
    /// vertices get the same number.
    fn permuted(&self, vertex: u64) -> u64 {
        if self.scale < 2 {
            return vertex;
        }
        // With an odd number of bits the halves differ in length, and each round changes the other one.
        let mut widths = [self.scale / 2, self.scale - self.scale / 2];
        let mut x = vertex;
        for round in 0..ROUNDS {
            let [low_bits, high_bits] = widths;
            let low = x & ((1 << low_bits) - 1);
            let high = (x >> low_bits) ^ (mix(mix(self.seed ^ round) ^ low) & ((1 << high_bits) - 1));
            x = low << high_bits | high;
            widths = [high_bits, low_bits];
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    #[test]
    fn vertices_are_permuted() {
        for scale in 0..12 {
            let generator = Generator { model: Model::Rmat, scale, degree: 1, seed: 5 };
            let new: BTreeSet<u64> = (0..1 << scale).map(|vertex| generator.permuted(vertex)).collect();
            assert_eq!(new, (0..1 << scale).collect(), "{scale}");
        }
    }

    #[test]
    fn the_nodes_share_the_edges() {
        let generator = Generator { model: Model::Uniform, scale: 5, degree: 3, seed: 1 };
        let numbers: Vec<u64> = (0..5).flat_map(|rank| generator.share(rank, 5)).collect();
        assert_eq!(numbers, (0..96).collect::<Vec<_>>());
    }

    #[test]
    fn degrees_are_skewed_in_one_model_only() {
        let most = |model| {
            let generator = Generator { model, scale: 10, degree: 16, seed: 3 };
            let mut degrees = std::vec![0u32; 1024];
            for number in 0..generator.edges() {
                let edge = generator.edge(number);
                assert!((1..=255).contains(&edge.weight));
                degrees[edge.to as usize] += 1;
                degrees[edge.from as usize] += 1;
            }
            degrees.into_iter().max().unwrap()
        };
        assert!(most(Model::Uniform) < 80);
        assert!(most(Model::Rmat) > 500);
    }
}
