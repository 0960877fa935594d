//! The reduce phase: combines all nodes' records for this node into one sorted list per worker.

use crate::MapReduce;
use crate::key::{Key, Seed};
use crate::region::Region;
use crate::run::RunReader;
use crate::sort::Sorted;
use crate::table::{Entries, Table};
use alloc::vec::Vec;
use platform::yield_now;
use runtime::JobError;

/// Records of another node that are combined between two awaits.
const TURN: usize = 4096;

/// Combines lists of this node with runs of others, and sorts the result. The keys of one list are distinct;
/// lists and runs may have keys in common. `seed` is the seed of the table in which they are combined.
pub(crate) async fn reduce<M: MapReduce, R: Region>(
    job: &M,
    seed: Seed,
    mut lists: Vec<Entries<M::Value>>,
    runs: Vec<RunReader<R, M::Value>>,
) -> Result<Sorted<M::Value>, JobError> {
    lists.retain(|list| !list.list.is_empty());
    if runs.is_empty()
        && lists.len() == 1
        && let Some(only) = lists.pop()
    {
        return Ok(Sorted::new(job, only)?);
    }
    let mut table = Table::new(seed);
    for list in lists {
        table.absorb(list, |into, more| job.combine(into, more));
        yield_now().await;
    }
    for mut run in runs {
        let mut taken = 0usize;
        while let Some(value) = run.next().await? {
            table.add(Key::from(run.key()), value, |into, more| job.combine(into, more));
            taken += 1;
            if taken.is_multiple_of(TURN) {
                if let Some(error) = table.failed() {
                    return Err(error.into());
                }
                yield_now().await;
            }
        }
    }
    Ok(Sorted::new(job, table.into_entries()?)?)
}
