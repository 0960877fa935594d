//! Object numbers that a master allocates: of queue pairs, completion queues, table entries.

use crate::device::hcr::Status;
use std::collections::BTreeMap;

/// Free numbers of one kind, and the slave's quota.
#[derive(Debug)]
pub(super) struct Pool {
    /// The lengths of runs of free numbers, by their first number. Runs neither overlap nor touch.
    free: BTreeMap<u32, u32>,
    /// The start of the next search, so that a freed number is not reused immediately.
    next: u32,
    quota: u32,
    taken: u32,
}

impl Pool {
    /// Creates a pool of the numbers from `first` to before `end`, with a quota for the slave.
    #[must_use]
    pub(super) fn new(first: u32, end: u32, quota: u32) -> Self {
        let free = BTreeMap::from([(first, end - first)]);
        Self { free, next: first, quota, taken: 0 }
    }

    /// Returns the slave's quota.
    #[must_use]
    pub(super) const fn quota(&self) -> u32 {
        self.quota
    }

    /// Allocates `count` consecutive numbers, the first a multiple of `align`. If the quota is exceeded,
    /// Linux's master reports EDQUOT, which has no status of its own; an exhausted pool is ENOMEM.
    pub(super) fn take(&mut self, count: u32, align: u32) -> Result<u32, Status> {
        let align = align.max(1);
        if count == 0 {
            return Err(Status::BadParameter);
        }
        if self.taken.checked_add(count).is_none_or(|taken| taken > self.quota) {
            return Err(Status::Internal);
        }
        let fit = |(&at, &len): (&u32, &u32), from: u32| {
            let start = at.max(from).checked_next_multiple_of(align)?;
            (start.checked_add(count)? <= at + len).then_some((at, len, start))
        };
        // The run that contains `next` is used from there on.
        let here = self.free.range(..self.next).next_back().and_then(|run| fit(run, self.next));
        let found = here
            .or_else(|| self.free.range(self.next..).find_map(|run| fit(run, 0)))
            .or_else(|| self.free.iter().find_map(|run| fit(run, 0)));
        let (at, len, start) = found.ok_or(Status::ExceedsLimit)?;
        self.free.remove(&at);
        if start > at {
            self.free.insert(at, start - at);
        }
        let end = start + count;
        if end < at + len {
            self.free.insert(end, at + len - end);
        }
        self.taken += count;
        self.next = end;
        Ok(start)
    }

    /// Frees numbers.
    pub(super) fn give_back(&mut self, first: u32, count: u32) {
        let (mut start, mut len) = (first, count);
        if let Some((&before, &n)) = self.free.range(..first).next_back()
            && before + n == first
        {
            self.free.remove(&before);
            (start, len) = (before, n + len);
        }
        if let Some(n) = self.free.remove(&(first + count)) {
            len += n;
        }
        self.free.insert(start, len);
        self.taken -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_once_aligned_and_within_the_quota() {
        let mut pool = Pool::new(10, 100, 60);
        assert_eq!(pool.take(1, 1), Ok(10));
        assert_eq!(pool.take(16, 16), Ok(16));
        assert_eq!(pool.take(1, 1), Ok(32), "a number that was not free before");
        pool.give_back(10, 1);
        assert_eq!(pool.take(60, 1), Err(Status::Internal), "quota");
        assert_eq!(pool.take(40, 64), Err(Status::ExceedsLimit), "no such row");
        assert_eq!(pool.take(43, 1), Ok(33));
        assert_eq!(pool.take(1, 1), Err(Status::Internal));
        pool.give_back(16, 16);
        pool.give_back(32, 1);
        pool.give_back(33, 43);
        assert_eq!(pool.free, BTreeMap::from([(10, 90)]));
        assert_eq!(pool.take(0, 1), Err(Status::BadParameter));
    }

    #[test]
    fn the_search_comes_round() {
        let mut pool = Pool::new(0, 8, 8);
        assert_eq!(pool.take(6, 1), Ok(0));
        pool.give_back(0, 4);
        assert_eq!(pool.take(4, 4), Ok(0));
        assert_eq!(pool.take(2, 1), Ok(6));
    }
}
