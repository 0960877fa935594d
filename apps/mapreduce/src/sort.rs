//! Sorts by rank, then by key.

use crate::key::SHORT;
use crate::table::{Entries, Entry};
use crate::{MapReduce, OutOfMemory};
use alloc::vec::Vec;
use core::cmp::Ordering;

/// The first sort key, which decides most comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Head {
    /// [`MapReduce::rank`] of the value.
    pub(crate) rank: u64,
    /// The key's first eight bytes, big-endian.
    pub(crate) prefix: u64,
}

/// Entries of a table, sorted in the order of the output.
#[derive(Debug)]
pub(crate) struct Sorted<V> {
    entries: Entries<V>,
    order: Vec<(Head, u32)>,
}

impl<V> Sorted<V> {
    /// Sorts by the job's order.
    pub(crate) fn new<M: MapReduce<Value = V>>(job: &M, entries: Entries<V>) -> Result<Self, OutOfMemory> {
        let mut order: Vec<(Head, u32)> = Vec::new();
        let wanted = entries.list.len() * size_of::<(Head, u32)>();
        order.try_reserve_exact(entries.list.len()).map_err(|_| OutOfMemory { wanted })?;
        order.extend(
            (0..).zip(&entries.list).map(|(number, entry)| {
                (Head { rank: job.rank(&entry.value), prefix: entry.prefix() }, number)
            }),
        );
        let Entries { list, arena } = &entries;
        order.sort_unstable_by(|(a, i), (b, j)| match a.cmp(b) {
            Ordering::Equal => list[*i as usize].cmp_key(arena, &list[*j as usize], arena),
            unequal => unequal,
        });
        Ok(Self { entries, order })
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns the entry at a position of the order.
    pub(crate) fn get(&self, position: usize) -> Option<(Head, &Entry<V>)> {
        let (head, number) = self.order.get(position)?;
        Some((*head, self.entries.list.get(*number as usize)?))
    }

    /// Returns the bytes of an entry's key. The bytes of a short key are stored in `room`.
    pub(crate) fn key<'a>(&'a self, entry: &Entry<V>, room: &'a mut [u8; SHORT]) -> &'a [u8] {
        entry.key(&self.entries.arena, room)
    }

    /// Returns all entries, in no particular order.
    pub(crate) fn entries(&self) -> &[Entry<V>] {
        &self.entries.list
    }
}
