//! Values of which each shard of a node has one of its own.

use alloc::boxed::Box;
use alloc::vec::Vec;
use platform::Platform;

/// A value for each shard, of which there is at least one. The first one is in place: a node with one core
/// finds it at once.
pub(crate) struct PerShard<T> {
    pub(crate) first: T,
    pub(crate) others: Box<[T]>,
}

impl<T> PerShard<T> {
    /// Makes the values for `count` shards, at least for one, in the order of their numbers.
    pub(crate) fn new(count: usize, mut make: impl FnMut(usize) -> T) -> Self {
        Self { first: make(0), others: (1..count).map(make).collect() }
    }

    /// Makes the values as [`new`](Self::new) does, or returns the first error.
    pub(crate) fn try_new<E>(count: usize, mut make: impl FnMut(usize) -> Result<T, E>) -> Result<Self, E> {
        Ok(Self { first: make(0)?, others: (1..count).map(make).collect::<Result<_, E>>()? })
    }

    /// Collects values in the order of the shards' numbers; returns `None` if there are none.
    pub(crate) fn collect(values: impl IntoIterator<Item = T>) -> Option<Self> {
        let mut values = values.into_iter();
        Some(Self { first: values.next()?, others: values.collect() })
    }

    /// Returns the number of shards.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// Returns the values in the order of the shards' numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        core::iter::once(&self.first).chain(&self.others)
    }

    /// Returns the value of a shard.
    #[inline(always)]
    pub(crate) fn get(&self, shard: usize) -> Option<&T> {
        if shard == 0 { Some(&self.first) } else { self.others.get(shard - 1) }
    }

    /// Returns the number of the shard of a core: cores beyond the last shard share, by number.
    pub(crate) fn of_core(&self, core: usize) -> usize {
        core % self.count()
    }

    /// Returns the value of the present core's shard.
    #[inline(always)]
    pub(crate) fn here(&self, platform: &dyn Platform) -> &T {
        if self.others.is_empty() {
            return &self.first;
        }
        self.get(self.of_core(platform.cpu())).unwrap_or(&self.first)
    }

    /// Removes the values of all but the first `count` shards; that of the first shard stays.
    pub(crate) fn truncate(&mut self, count: usize) {
        let mut others = Vec::from(core::mem::take(&mut self.others));
        others.truncate(count.saturating_sub(1));
        self.others = others.into();
    }
}
