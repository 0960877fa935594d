//! Merges sorted lists of this node and of others, in final order.

use crate::MapReduce;
use crate::key::{SHORT, word_of};
use crate::region::Region;
use crate::run::RunReader;
use crate::sort::{Head, Sorted};
use alloc::vec::Vec;
use core::cmp::Ordering;
use runtime::JobError;

/// A sorted list and a position in it.
pub(crate) enum Source<M: MapReduce, R> {
    /// A sorted list in this node's memory.
    Local { sorted: Sorted<M::Value>, at: usize },
    /// A run in a region, with the value of its latest record.
    Remote { reader: RunReader<R, M::Value>, value: Option<M::Value> },
}

impl<M: MapReduce, R: Region> Source<M, R> {
    pub(crate) fn local(sorted: Sorted<M::Value>) -> Self {
        Self::Local { sorted, at: 0 }
    }

    pub(crate) fn remote(reader: RunReader<R, M::Value>) -> Self {
        Self::Remote { reader, value: None }
    }

    /// Returns the key and value at the position.
    fn record<'a>(&'a self, scratch: &'a mut [u8; SHORT]) -> Option<(&'a [u8], &'a M::Value)> {
        match self {
            Self::Local { sorted, at } => {
                let (_, entry) = sorted.get(*at)?;
                Some((sorted.key(entry, scratch), &entry.value))
            }
            Self::Remote { reader, value } => Some((reader.key(), value.as_ref()?)),
        }
    }

    /// Returns the head of the record at the position, which decides most comparisons; `None` at the end.
    fn head(&self, job: &M) -> Option<Head> {
        match self {
            Self::Local { sorted, at } => Some(sorted.get(*at)?.0),
            Self::Remote { reader, value } => {
                let rank = job.rank(value.as_ref()?);
                Some(Head { rank, prefix: word_of(reader.key()).swap_bytes() })
            }
        }
    }

    /// Moves to the next record.
    async fn advance(&mut self) -> Result<(), JobError> {
        match self {
            Self::Local { at, .. } => *at += 1,
            Self::Remote { reader, value } => *value = reader.next().await?,
        }
        Ok(())
    }
}

/// A merge of several sorted sources.
pub(crate) struct Merge<M: MapReduce, R> {
    sources: Vec<(Head, Source<M, R>)>,
    /// Index of the source with the next record. Meaningless if there is no source.
    least: usize,
}

impl<M: MapReduce, R: Region> Merge<M, R> {
    /// Positions each source at its first record.
    pub(crate) async fn new(job: &M, sources: Vec<Source<M, R>>) -> Result<Self, JobError> {
        let mut started = Vec::new();
        for mut source in sources {
            if matches!(source, Source::Remote { .. }) {
                source.advance().await?;
            }
            if let Some(head) = source.head(job) {
                started.push((head, source));
            }
        }
        let mut merge = Self { sources: started, least: 0 };
        merge.find_least();
        Ok(merge)
    }

    /// Returns the next key and value in order; `None` at the end.
    pub(crate) fn peek<'a>(&'a self, scratch: &'a mut [u8; SHORT]) -> Option<(&'a [u8], &'a M::Value)> {
        self.sources.get(self.least)?.1.record(scratch)
    }

    /// Moves to the next record.
    pub(crate) async fn advance(&mut self, job: &M) -> Result<(), JobError> {
        let Some((head, source)) = self.sources.get_mut(self.least) else { return Ok(()) };
        source.advance().await?;
        match source.head(job) {
            Some(next) => *head = next,
            None => drop(self.sources.swap_remove(self.least)),
        }
        self.find_least();
        Ok(())
    }

    fn find_least(&mut self) {
        // A linear scan is enough: there are few sources, and nearly all comparisons are of two integers.
        self.least = 0;
        for other in 1..self.sources.len() {
            if self.before(other, self.least) {
                self.least = other;
            }
        }
    }

    fn before(&self, a: usize, b: usize) -> bool {
        let (Some((head_a, a)), Some((head_b, b))) = (self.sources.get(a), self.sources.get(b)) else {
            return false;
        };
        let order = head_a.cmp(head_b).then_with(|| {
            let (mut room_a, mut room_b) = ([0; SHORT], [0; SHORT]);
            match (a.record(&mut room_a), b.record(&mut room_b)) {
                (Some((key_a, _)), Some((key_b, _))) => key_a.cmp(key_b),
                _ => Ordering::Equal,
            }
        });
        order == Ordering::Less
    }
}
