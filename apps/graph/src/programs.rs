//! The vertex programs of the applications.

use crate::program::{Global, Program, Vertex};
use alloc::format;
use runtime::JobError;

/// The number that stands for 1 in the ranks of [`PageRank`].
pub const ONE: u64 = 1 << 62;

/// The most iterations until ranks have converged.
const MOST: u32 = 1000;

/// The condition that ends PageRank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The number of iterations.
    Iterations(u32),
    /// The sum of all changes in one iteration, in parts of [`ONE`], below which the ranks have converged.
    Tolerance(u64),
}

/// PageRank with damping 0.85 in 64-bit fixed point. The ranks sum to 1: the rank of vertices without edges
/// from them is spread evenly over all vertices.
#[derive(Clone, Copy, Debug)]
pub struct PageRank {
    /// The condition that ends the iterations.
    pub stop: Stop,
}

/// Returns 0.85 times `x`, rounded down.
fn damped(x: u64) -> u64 {
    x / 20 * 17 + x % 20 * 17 / 20
}

impl Program for PageRank {
    const IDENTITY: u64 = 0;
    const MONOTONE: bool = false;

    fn init(&self, vertex: &Vertex) -> u64 {
        ONE / vertex.vertices.max(1)
    }

    fn scatter(&self, vertex: &Vertex, value: u64) -> u64 {
        // Rounded to the nearest, so that no rank is lost on average.
        let degree = u64::from(vertex.out_degree);
        (value + degree / 2).checked_div(degree).unwrap_or(0)
    }

    fn scatter_alike(&self, first: &Vertex, values: &[u64], signals: &mut [u64]) -> bool {
        let degree = u64::from(first.out_degree);
        let Some(reciprocal) = u64::MAX.checked_div(degree) else {
            signals.fill(0);
            return true;
        };
        for (signal, value) in signals.iter_mut().zip(values) {
            let rounded = value + degree / 2;
            // A rank is at most 2^62, so the quotient is too small by one at most.
            let quotient = ((u128::from(rounded) * u128::from(reciprocal)) >> 64) as u64;
            *signal = quotient + u64::from(rounded - quotient * degree >= degree);
        }
        true
    }

    fn combine(&self, a: u64, b: u64) -> u64 {
        a.wrapping_add(b)
    }

    fn common(&self, vertices: u64, global: &Global) -> u64 {
        let all = vertices.max(1);
        ONE / 20 * 3 / all + damped(global.mass) / all
    }

    fn apply(&self, _: &Vertex, _: u64, sum: u64, common: u64) -> u64 {
        common + damped(sum)
    }

    fn mass(&self, vertex: &Vertex, value: u64) -> u64 {
        if vertex.out_degree == 0 { value } else { 0 }
    }

    fn delta(&self, old: u64, new: u64) -> u64 {
        old.abs_diff(new)
    }

    fn is_last(&self, rounds: u32) -> bool {
        matches!(self.stop, Stop::Iterations(wanted) if rounds >= wanted)
    }

    fn is_done(&self, rounds: u32, global: &Global) -> Result<bool, JobError> {
        match self.stop {
            Stop::Tolerance(limit) if rounds > 0 && global.delta < limit => Ok(true),
            Stop::Tolerance(_) if rounds >= MOST => Err(JobError::Refused(format!(
                "the ranks have not converged in {MOST} iterations; a larger tolerance= helps"
            ))),
            _ => Ok(false),
        }
    }
}

/// Breadth first search: the number of edges on the shortest path from the source; `u64::MAX` where there is
/// none.
#[derive(Clone, Copy, Debug)]
pub struct Bfs {
    /// The identifier of the source.
    pub source: u64,
}

impl Program for Bfs {
    const IDENTITY: u64 = u64::MAX;
    const MONOTONE: bool = true;

    fn init(&self, vertex: &Vertex) -> u64 {
        if vertex.id == self.source { 0 } else { u64::MAX }
    }

    fn gather(&self, signal: u64, _: u32) -> u64 {
        signal.saturating_add(1)
    }

    fn combine(&self, a: u64, b: u64) -> u64 {
        a.min(b)
    }

    fn apply(&self, _: &Vertex, value: u64, sum: u64, _: u64) -> u64 {
        value.min(sum)
    }

    fn is_final(&self, value: u64) -> bool {
        value != u64::MAX
    }

    /// All neighbours that an unvisited vertex hears from have been visited in the same superstep.
    fn is_enough(&self, sum: u64) -> bool {
        sum != u64::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        /// The signals without a division are those with one.
        #[test]
        fn signals_are_rounded_quotients(
            out_degree in prop_oneof![0u32..20, any::<u32>()],
            values in proptest::collection::vec(0..=ONE, 1..20),
        ) {
            let program = PageRank { stop: Stop::Iterations(1) };
            let vertex = Vertex { id: 0, out_degree, vertices: 9 };
            let mut signals = alloc::vec![7; values.len()];
            prop_assert!(program.scatter_alike(&vertex, &values, &mut signals));
            let expected: Vec<u64> = values.iter().map(|value| program.scatter(&vertex, *value)).collect();
            prop_assert_eq!(signals, expected);
        }
    }
}
