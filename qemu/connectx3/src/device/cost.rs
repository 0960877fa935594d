//! What work costs a card, in virtual time: an engine, a link, and small caches for tables that lie in the machine's memory.
//!
//! Off unless a card is [given](super::Card::set_costs) one. It never changes what the card does: it only adds up the time
//! a card would have been busy, from which a throughput follows. The numbers are parameters of a simulation. What a
//! ConnectX-3's caches hold and what a miss costs it is not published; [`Parameters::default`] has the caches run out
//! where the LITE paper measured that throughput begins to fall: about 100 regions, and 4 MB of 4 KiB pages in all.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A cache of a table's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheParameters {
    /// Entries that it holds; the least recently used one makes room.
    pub entries: usize,
    /// Nanoseconds that an entry costs which is there.
    pub hit_ns: u64,
    /// Nanoseconds that an entry costs which must be fetched.
    pub miss_ns: u64,
}

/// A card's speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Nanoseconds of the engine for each work request executed, and for each packet received.
    pub engine_ns: u64,
    /// Picoseconds of the link for each byte of a frame.
    pub byte_ps: u64,
    /// Entries of the memory protection table: one per region.
    pub mpt: CacheParameters,
    /// Entries of the memory translation table: one per page.
    pub mtt: CacheParameters,
    /// Contexts of queue pairs.
    pub qpc: CacheParameters,
}

impl Default for Parameters {
    /// Six million work requests a second, 40 Gb/s, and a miss that costs what reading the machine's memory over PCI
    /// Express leaves after overlap with its neighbours.
    fn default() -> Self {
        let cache = |entries| CacheParameters { entries, hit_ns: 0, miss_ns: 250 };
        Self { engine_ns: 165, byte_ps: 200, mpt: cache(128), mtt: cache(1024), qpc: cache(256) }
    }
}

/// Hits and misses of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Found.
    pub hits: u64,
    /// Fetched.
    pub misses: u64,
}

/// Entries by when they were used last.
#[derive(Debug)]
struct Cache {
    parameters: CacheParameters,
    uses: u64,
    /// When each entry was used last.
    last_use: HashMap<u64, u64>,
    /// The same by time.
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

    /// Looks an entry up; gives what that costs.
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

    /// Forgets an entry that has changed.
    fn forget(&mut self, entry: u64) {
        if let Some(time) = self.last_use.remove(&entry) {
            self.by_age.remove(&time);
        }
    }
}

/// A card's account. The tables are looked at through shared references, so it counts behind one.
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

/// How long a card was busy, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Nanoseconds of the engine, lookups included.
    pub engine_ns: u64,
    /// Nanoseconds of the link.
    pub link_ns: u64,
    /// Regions.
    pub mpt: Lookups,
    /// Pages.
    pub mtt: Lookups,
    /// Queue pairs.
    pub qpc: Lookups,
}

impl Account {
    /// Nanoseconds that the card needed: its engine and its link work at the same time.
    #[must_use]
    pub const fn busy_ns(&self) -> u64 {
        if self.engine_ns > self.link_ns { self.engine_ns } else { self.link_ns }
    }
}

impl Costs {
    /// A card that has done nothing, with empty caches.
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

    /// A work request is executed, or a packet received, for a queue pair.
    pub(super) fn work(&self, qpn: u32) {
        let mut tally = self.tally();
        tally.engine_ns += self.parameters.engine_ns + tally.qpc.touch(qpn.into());
    }

    /// The entry of a region is looked at.
    pub(super) fn region(&self, index: u32) {
        let mut tally = self.tally();
        tally.engine_ns += tally.mpt.touch(index.into());
    }

    /// The entry of a region has changed.
    pub(super) fn region_changed(&self, index: u32) {
        self.tally().mpt.forget(index.into());
    }

    /// The entry of a page, at this byte of the table, is looked at.
    pub(super) fn page(&self, at: u64) {
        let mut tally = self.tally();
        tally.engine_ns += tally.mtt.touch(at);
    }

    /// A frame of so many bytes leaves.
    pub(super) fn frame(&self, bytes: usize) {
        self.tally().link_ps += bytes as u64 * self.parameters.byte_ps;
    }

    /// What has added up.
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

    /// Starts to add up anew; what is in the caches stays.
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
        // 9 takes the place of 8, and 8 then that of 7.
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
