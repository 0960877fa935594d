//! The cost model of a card's work in virtual time: an engine, a link, and small caches for tables that are
//! in the machine's memory.
//!
//! The model is off until it is [enabled](super::Card::set_costs). It never changes a card's behaviour: it
//! only adds up the time for which a real card would have been busy, from which a throughput follows. The
//! numbers are parameters of a simulation: the sizes of a ConnectX-3's caches and its cost of a miss are not
//! published. With [`Parameters::default`] the caches overflow where the LITE paper measured that throughput
//! begins to fall: at about 100 regions, and at 4 MB of 4 KiB pages.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The parameters of a cache of table entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheParameters {
    /// The capacity in entries. The least recently used entry is evicted.
    pub entries: usize,
    /// The cost of a hit, in nanoseconds.
    pub hit_ns: u64,
    /// The cost of a miss, in nanoseconds.
    pub miss_ns: u64,
}

/// The speed of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The engine's time per executed work request and per received packet, in nanoseconds.
    pub engine_ns: u64,
    /// The link's time per byte of a frame, in picoseconds.
    pub byte_ps: u64,
    /// The cache of the memory protection table, which has one entry per region.
    pub mpt: CacheParameters,
    /// The cache of the memory translation table, which has one entry per page.
    pub mtt: CacheParameters,
    /// The cache of queue pair contexts.
    pub qpc: CacheParameters,
}

impl Default for Parameters {
    /// Returns the default speed: six million work requests per second, 40 Gb/s, and for a miss the cost of a
    /// read over PCI Express that partly overlaps with others.
    fn default() -> Self {
        let cache = |entries| CacheParameters { entries, hit_ns: 0, miss_ns: 250 };
        Self { engine_ns: 165, byte_ps: 200, mpt: cache(128), mtt: cache(1024), qpc: cache(256) }
    }
}

/// The numbers of hits and misses of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Lookups of entries that were in the cache.
    pub hits: u64,
    /// Lookups of entries that had to be fetched.
    pub misses: u64,
}

/// A cache with least-recently-used eviction.
#[derive(Debug)]
struct Cache {
    parameters: CacheParameters,
    uses: u64,
    /// The time of each entry's last use, counted in lookups.
    last_use: HashMap<u64, u64>,
    /// The entries by the time of their last use.
    by_age: BTreeMap<u64, u64>,
    lookups: Lookups,
}

impl Cache {
    fn new(parameters: CacheParameters) -> Self {
        Self {
            parameters,
            uses: 0,
            last_use: HashMap::new(),
            by_age: BTreeMap::new(),
            lookups: Lookups::default(),
        }
    }

    /// Looks up an entry and returns the cost in nanoseconds.
    fn touch(&mut self, entry: u64) -> u64 {
        self.uses += 1;
        let before = self.last_use.insert(entry, self.uses);
        self.by_age.insert(self.uses, entry);
        if let Some(time) = before {
            self.by_age.remove(&time);
            self.lookups.hits += 1;
            return self.parameters.hit_ns;
        }
        if self.last_use.len() > self.parameters.entries
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.last_use.remove(&oldest);
        }
        self.lookups.misses += 1;
        self.parameters.miss_ns
    }

    /// Drops an entry that has changed.
    fn forget(&mut self, entry: u64) {
        if let Some(time) = self.last_use.remove(&entry) {
            self.by_age.remove(&time);
        }
    }
}

/// A card's account of costs. It is a mutex inside, because tables are looked up through shared references.
#[derive(Debug)]
pub struct Costs {
    parameters: Parameters,
    tally: Mutex<Tally>,
}

#[derive(Debug)]
struct Tally {
    engine_ns: u64,
    link_ps: u64,
    mpt: Cache,
    mtt: Cache,
    qpc: Cache,
}

/// The time for which a card was busy, and its lookups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The engine's busy time in nanoseconds, including lookups.
    pub engine_ns: u64,
    /// The link's busy time in nanoseconds.
    pub link_ns: u64,
    /// Lookups in the cache of regions (MPT).
    pub mpt: Lookups,
    /// Lookups in the cache of pages (MTT).
    pub mtt: Lookups,
    /// Lookups in the cache of queue pairs (QPC).
    pub qpc: Lookups,
}

impl Account {
    /// Returns the card's busy time in nanoseconds. Engine and link work in parallel.
    #[must_use]
    pub const fn busy_ns(&self) -> u64 {
        if self.engine_ns > self.link_ns { self.engine_ns } else { self.link_ns }
    }
}

impl Costs {
    /// Creates the account of an idle card with empty caches.
    #[must_use]
    pub fn new(parameters: Parameters) -> Self {
        let tally = Tally {
            engine_ns: 0,
            link_ps: 0,
            mpt: Cache::new(parameters.mpt),
            mtt: Cache::new(parameters.mtt),
            qpc: Cache::new(parameters.qpc),
        };
        Self { parameters, tally: Mutex::new(tally) }
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges the execution of a work request or the receipt of a packet for a queue pair.
    pub(super) fn work(&self, qpn: u32) {
        let mut tally = self.tally();
        tally.engine_ns += self.parameters.engine_ns + tally.qpc.touch(qpn.into());
    }

    /// Charges the lookup of a region's entry.
    pub(super) fn region(&self, index: u32) {
        let mut tally = self.tally();
        tally.engine_ns += tally.mpt.touch(index.into());
    }

    /// Drops the cached entry of a region that has changed.
    pub(super) fn region_changed(&self, index: u32) {
        self.tally().mpt.forget(index.into());
    }

    /// Charges the lookup of the page entry at byte offset `at` of the table.
    pub(super) fn page(&self, at: u64) {
        let mut tally = self.tally();
        tally.engine_ns += tally.mtt.touch(at);
    }

    /// Charges the transmission of a frame of `bytes` bytes.
    pub(super) fn frame(&self, bytes: usize) {
        self.tally().link_ps += bytes as u64 * self.parameters.byte_ps;
    }

    /// Returns the account.
    #[must_use]
    pub fn account(&self) -> Account {
        let tally = self.tally();
        Account {
            engine_ns: tally.engine_ns,
            link_ns: tally.link_ps / 1000,
            mpt: tally.mpt.lookups,
            mtt: tally.mtt.lookups,
            qpc: tally.qpc.lookups,
        }
    }

    /// Sets the account to zero. The caches keep their contents.
    pub fn clear(&self) {
        let mut tally = self.tally();
        (tally.engine_ns, tally.link_ps) = (0, 0);
        tally.mpt.lookups = Lookups::default();
        tally.mtt.lookups = Lookups::default();
        tally.qpc.lookups = Lookups::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_entry_makes_room() {
        let mut cache = Cache::new(CacheParameters { entries: 2, hit_ns: 1, miss_ns: 10 });
        let costs: Vec<_> = [7, 8, 7, 9, 8, 9].into_iter().map(|entry| cache.touch(entry)).collect();
        // 9 evicts 8, and then 8 evicts 7.
        assert_eq!(costs, [10, 10, 1, 10, 10, 1]);
        assert_eq!(cache.lookups, Lookups { hits: 2, misses: 4 });
        cache.forget(9);
        assert_eq!(cache.touch(9), 10);
        assert_eq!(cache.last_use.len(), cache.by_age.len());
    }

    #[test]
    fn a_working_set_that_fits_stays_and_one_that_does_not_never_hits() {
        for (working_set, hits) in [(8u64, 92), (9, 0)] {
            let mut cache = Cache::new(CacheParameters { entries: 8, hit_ns: 0, miss_ns: 1 });
            (0..100).for_each(|n| {
                cache.touch(n % working_set);
            });
            assert_eq!(cache.lookups.hits, hits);
        }
    }

    #[test]
    fn engine_and_link_work_at_the_same_time() {
        let costs = Costs::new(Parameters { engine_ns: 100, byte_ps: 500, ..Parameters::default() });
        costs.work(3);
        costs.frame(1000);
        let account = costs.account();
        assert_eq!((account.engine_ns, account.link_ns), (350, 500));
        assert_eq!(account.busy_ns(), 500);
        costs.clear();
        costs.work(3);
        assert_eq!(costs.account().engine_ns, 100, "the context is still there");
    }
}
