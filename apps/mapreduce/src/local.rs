//! A whole job on one processor and without a network: measures the framework's own speed, and serves tests
//! as the reference. Its table has a known seed, so its input must be trusted.

use crate::key::{SHORT, Seed};
use crate::sort::Sorted;
use crate::table::Table;
use crate::{Emitter, MapReduce, OutOfMemory, Split};
use alloc::vec::Vec;

/// Maps all splits, combines, sorts, and returns the formatted output.
///
/// # Errors
///
/// [`OutOfMemory`] if the tables do not fit into memory.
pub fn run<M: MapReduce>(job: &M, splits: &[Split<'_>]) -> Result<Vec<u8>, OutOfMemory> {
    let mut table = Table::new(Seed::KNOWN);
    let mut emit = Emitter::new(job, &mut table);
    for split in splits {
        job.map(*split, &mut emit);
    }
    let sorted = Sorted::new(job, table.into_entries()?)?;
    let mut out = Vec::new();
    for position in 0..sorted.len() {
        if let Some((_, entry)) = sorted.get(position) {
            job.format(sorted.key(entry, &mut [0; SHORT]), &entry.value, &mut out);
        }
    }
    Ok(out)
}
