//! Supersteps in which few vertices have changed: signals follow the edges from these vertices.

use crate::edge::filled;
use crate::part::Part;
use crate::program::Program;
use alloc::vec::Vec;
use runtime::JobError;

/// The sums of the own vertices that signals have reached.
pub(crate) struct Sparse {
    sums: Vec<u64>,
    /// The own vertices with a sum.
    reached: Vec<u32>,
}

impl Sparse {
    pub(crate) fn new<P: Program>(part: &Part) -> Result<Self, JobError> {
        Ok(Self { sums: filled(P::IDENTITY, part.len())?, reached: Vec::new() })
    }

    /// Adds the signal of a slot to the sums of own vertices.
    pub(crate) fn push<P: Program>(&mut self, program: &P, part: &Part, slots: &[u64], slot: u32) {
        let Some(signal) = slots.get(slot as usize) else { return };
        let (sums, reached) = (&mut self.sums, &mut self.reached);
        for (target, weight) in part.outgoing.weighted(slot as usize) {
            if target as usize >= part.len() {
                break;
            }
            add(program, sums, reached, target, program.gather(*signal, weight));
        }
    }

    /// Adds a partial sum of another node.
    pub(crate) fn add<P: Program>(&mut self, program: &P, vertex: u32, sum: u64) {
        add(program, &mut self.sums, &mut self.reached, vertex, sum);
    }

    /// Calls `each` for each vertex that has a sum, and clears the sums.
    pub(crate) fn take<P: Program>(&mut self, mut each: impl FnMut(u32, u64)) {
        for vertex in self.reached.drain(..) {
            if let Some(sum) = self.sums.get_mut(vertex as usize) {
                each(vertex, core::mem::replace(sum, P::IDENTITY));
            }
        }
    }
}

/// Adds the signal of a slot to the partial sums for other nodes' hubs.
pub(crate) fn push_cuts<P: Program>(program: &P, part: &Part, slots: &[u64], slot: u32, partial: &mut [u64]) {
    let (Some(signal), first) = (slots.get(slot as usize), part.len()) else { return };
    let begin = part.outgoing.of(slot as usize).partition_point(|target| (*target as usize) < first);
    for (target, weight) in part.outgoing.weighted(slot as usize).skip(begin) {
        if let Some(sum) = partial.get_mut(target as usize - first) {
            *sum = program.combine(*sum, program.gather(*signal, weight));
        }
    }
}

fn add<P: Program>(program: &P, sums: &mut [u64], reached: &mut Vec<u32>, vertex: u32, part: u64) {
    let Some(sum) = sums.get_mut(vertex as usize) else { return };
    // A vertex whose sum is still the identity may be listed twice: its second sum is the identity again.
    if *sum == P::IDENTITY {
        reached.push(vertex);
    }
    *sum = program.combine(*sum, part);
}
