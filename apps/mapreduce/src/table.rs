//! The combining hash table: distinct keys, each with one value.
//!
//! The table is an index of entry numbers with linear probing, at most half full, over a dense list of
//! entries. A short key is stored in its entry and compared as two integers. The entry of a long key has the
//! key's first eight bytes and its address in the arena.
//!
//! An entry's position in the index depends on a hash under the table's own seed. The share of the job that a
//! key belongs to depends on a hash under a seed that all nodes of the job know.

use crate::OutOfMemory;
use crate::arena::{Address, Arena};
use crate::key::{Key, SHORT, Seed, Short, hash_long, part_of, word_of};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;

/// The length of the first index. All lengths are powers of two.
const FIRST_INDEX: usize = 1 << 10;
/// The most entries that a table holds. The index then has as many slots as there are 32-bit hashes, and
/// entry numbers still fit into 32 bits.
const MOST: usize = 1 << 31;

/// A key and its value.
#[derive(Debug)]
pub(crate) struct Entry<V> {
    /// The key's first eight bytes, little-endian. Missing bytes are zero.
    lo: u64,
    /// Short key: the next eight bytes. Long key: its address in the arena.
    hi: u64,
    /// The low half of the key's hash in its table.
    hash: u32,
    len: u32,
    pub(crate) value: V,
}

impl<V> Entry<V> {
    /// Returns the index of the share that the key belongs to, of `parts` equal shares of the hash space
    /// under `seed`.
    fn part(&self, arena: &Arena, seed: Seed, parts: usize) -> usize {
        let hash = if self.is_short() {
            Short::from_parts(self.lo, self.hi, self.len).hash(seed)
        } else {
            hash_long(arena.get(Address::from_word(self.hi), self.key_len()), seed)
        };
        part_of(hash, seed, parts)
    }

    /// Returns the first eight bytes as a number with the same order.
    pub(crate) const fn prefix(&self) -> u64 {
        self.lo.swap_bytes()
    }

    fn is_short(&self) -> bool {
        self.len as usize <= SHORT
    }

    /// Returns the length of the key, in bytes.
    pub(crate) const fn key_len(&self) -> usize {
        self.len as usize
    }

    /// Returns the key's bytes. The bytes of a short key are stored in `room`.
    pub(crate) fn key<'a>(&self, arena: &'a Arena, room: &'a mut [u8; SHORT]) -> &'a [u8] {
        if self.is_short() {
            *room = (u128::from(self.hi) << 64 | u128::from(self.lo)).to_le_bytes();
            &room[..self.key_len()]
        } else {
            arena.get(Address::from_word(self.hi), self.key_len())
        }
    }

    /// Compares keys bytewise.
    pub(crate) fn cmp_key(&self, arena: &Arena, other: &Self, other_arena: &Arena) -> Ordering {
        self.prefix().cmp(&other.prefix()).then_with(|| {
            if self.is_short() && other.is_short() {
                // The padding is zero, so of two keys that differ in trailing zero bytes only, the shorter is
                // less.
                (self.hi.swap_bytes(), self.len).cmp(&(other.hi.swap_bytes(), other.len))
            } else {
                self.key(arena, &mut [0; SHORT]).cmp(other.key(other_arena, &mut [0; SHORT]))
            }
        })
    }
}

/// Entries with distinct keys, in no order. Long keys are in an arena that several lists may share.
#[derive(Debug)]
pub(crate) struct Entries<V> {
    pub(crate) list: Vec<Entry<V>>,
    pub(crate) arena: Arc<Arena>,
}

/// Distinct keys and their values.
#[derive(Debug)]
pub(crate) struct Table<V> {
    /// Entry numbers plus one; zero marks a free slot.
    index: Vec<u32>,
    entries: Vec<Entry<V>>,
    arena: Arena,
    seed: Seed,
    /// The most entries: [`MOST`], except in tests.
    most: usize,
    /// Set once memory has run out. Entries may be missing then.
    failed: Option<OutOfMemory>,
}

impl<V> Table<V> {
    /// Returns a table whose index is arranged by hashes under `seed`.
    pub(crate) fn new(seed: Seed) -> Self {
        let (index, entries, arena) = (Vec::new(), Vec::new(), Arena::default());
        Self { index, entries, arena, seed, most: MOST, failed: None }
    }

    /// Adds `value` to the key, by `combine` if the key has a value already.
    #[inline]
    pub(crate) fn add(&mut self, key: Key<'_>, value: V, combine: impl FnOnce(&mut V, V)) {
        match key {
            Key::Short(key) => self.add_short(key, value, combine),
            Key::Long(key) => self.add_long(key.len(), |bytes| bytes.copy_from_slice(key), value, combine),
        }
    }

    #[inline]
    fn add_short(&mut self, key: Short, value: V, combine: impl FnOnce(&mut V, V)) {
        let hash = key.hash(self.seed) as u32;
        let mask = self.index.len().wrapping_sub(1);
        let mut at = hash as usize & mask;
        while let Some(&number @ 1..) = self.index.get(at) {
            let entry = &mut self.entries[number as usize - 1];
            if entry.lo == key.lo() && entry.hi == key.hi() && entry.len == key.len() {
                return combine(&mut entry.value, value);
            }
            at = (at + 1) & mask;
        }
        self.insert(Entry { lo: key.lo(), hi: key.hi(), hash, len: key.len(), value });
    }

    /// Adds `value` to a key of `len` bytes, more than 16, that `fill` writes.
    #[inline(never)]
    pub(crate) fn add_long(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
        value: V,
        combine: impl FnOnce(&mut V, V),
    ) {
        debug_assert!(len > SHORT);
        let (Ok(len32), Ok(addr)) = (u32::try_from(len), self.arena.push(len, fill)) else {
            self.failed = Some(OutOfMemory { wanted: len });
            return;
        };
        let key = self.arena.get(addr, len);
        let (lo, hash) = (word_of(key), hash_long(key, self.seed) as u32);
        let mask = self.index.len().wrapping_sub(1);
        let mut at = hash as usize & mask;
        while let Some(&number @ 1..) = self.index.get(at) {
            let entry = &mut self.entries[number as usize - 1];
            if entry.hash == hash
                && entry.len == len32
                && entry.lo == lo
                && self.arena.get(Address::from_word(entry.hi), len) == key
            {
                self.arena.pop(addr);
                return combine(&mut entry.value, value);
            }
            at = (at + 1) & mask;
        }
        self.insert(Entry { lo, hi: addr.to_word(), hash, len: len32, value });
    }

    /// Appends the entry of a new key.
    #[cold]
    #[inline(never)]
    fn insert(&mut self, entry: Entry<V>) {
        if let Err(e) = self.make_room() {
            self.failed = Some(e);
            return;
        }
        let hash = entry.hash;
        self.entries.push(entry);
        let number = self.entries.len() as u32;
        store_number(&mut self.index, hash, number);
    }

    /// Makes room for one more entry, with an index that stays at most half full.
    fn make_room(&mut self) -> Result<(), OutOfMemory> {
        let len = self.entries.len();
        if len >= self.most {
            // For the user of the job this means that the node's memory is too small for the number of keys.
            return Err(OutOfMemory { wanted: 2 * len * size_of::<Entry<V>>() });
        }
        if len == self.entries.capacity() {
            // Once the list is large it grows by half: doubling it would need three times its size for a
            // moment.
            let more = if len < 1 << 16 { len.max(64) } else { len / 2 };
            let wanted = (len + more) * size_of::<Entry<V>>();
            self.entries.try_reserve_exact(more).map_err(|_| OutOfMemory { wanted })?;
        }
        if (len + 1) * 2 > self.index.len() {
            let size =
                if len == 0 { FIRST_INDEX } else { self.index.len() * if len < 1 << 16 { 4 } else { 2 } };
            self.index = Vec::new();
            let wanted = size * size_of::<u32>();
            self.index.try_reserve_exact(size).map_err(|_| OutOfMemory { wanted })?;
            self.index.resize(size, 0);
            for (number, entry) in (1..).zip(&self.entries) {
                store_number(&mut self.index, entry.hash, number);
            }
        }
        Ok(())
    }

    /// Returns the entries as one list.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if entries are missing.
    pub(crate) fn into_entries(self) -> Result<Entries<V>, OutOfMemory> {
        match self.failed {
            Some(e) => Err(e),
            None => Ok(Entries { list: self.entries, arena: Arc::new(self.arena) }),
        }
    }

    /// Returns the error if memory has run out.
    pub(crate) fn failed(&self) -> Option<OutOfMemory> {
        self.failed
    }

    /// Adds all entries of another table.
    pub(crate) fn absorb(&mut self, entries: Entries<V>, combine: impl Fn(&mut V, V)) {
        for entry in entries.list {
            if entry.is_short() {
                let key = Short::from_parts(entry.lo, entry.hi, entry.len);
                self.add_short(key, entry.value, &combine);
            } else {
                let key = entries.arena.get(Address::from_word(entry.hi), entry.key_len());
                self.add(Key::Long(key), entry.value, &combine);
            }
        }
    }
}

impl<V> Entries<V> {
    /// Splits the list into `parts` lists that share the arena, by hashes under the job's seed.
    pub(crate) fn partition(self, parts: usize, seed: Seed) -> Result<Vec<Self>, OutOfMemory> {
        if parts == 1 {
            return Ok(alloc::vec![self]);
        }
        let mut counts = alloc::vec![0usize; parts];
        for entry in &self.list {
            counts[entry.part(&self.arena, seed, parts)] += 1;
        }
        let mut lists = Vec::with_capacity(parts);
        for count in counts {
            let mut list = Vec::new();
            let wanted = count * size_of::<Entry<V>>();
            list.try_reserve_exact(count).map_err(|_| OutOfMemory { wanted })?;
            lists.push(Self { list, arena: self.arena.clone() });
        }
        for entry in self.list {
            lists[entry.part(&self.arena, seed, parts)].list.push(entry);
        }
        Ok(lists)
    }
}

/// Stores an entry's number in the first free slot, starting at its hash.
fn store_number(index: &mut [u32], hash: u32, number: u32) {
    let mask = index.len() - 1;
    let mut at = hash as usize & mask;
    while index[at] != 0 {
        at = (at + 1) & mask;
    }
    index[at] = number;
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::format;
    use proptest::prelude::*;

    const SEED: Seed = Seed::KNOWN;

    impl<V> Table<V> {
        /// Counts the slots beyond the first that are examined when each key is looked up once.
        fn probes(&self) -> usize {
            let mask = self.index.len().wrapping_sub(1);
            let slots = self.index.iter().enumerate().filter(|(_, number)| **number != 0);
            slots
                .map(|(at, &number)| at.wrapping_sub(self.entries[number as usize - 1].hash as usize) & mask)
                .sum()
        }
    }

    /// Returns a table of the keys.
    fn table_of(keys: &[[u8; SHORT]], seed: Seed) -> Table<u64> {
        let mut table = Table::new(seed);
        for key in keys {
            table.add(Key::from(&key[..]), 1, |sum, more| *sum += more);
        }
        table
    }

    /// Keys that an attacker who knows the seed can construct: one factor of the product is 1, and the low 20
    /// bits of both halves of the other are 0, so that the low 20 bits of the hash are 0.
    fn crafted() -> Vec<[u8; SHORT]> {
        let bytes = Seed::KNOWN.to_bytes();
        let (lo, hi) = bytes.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().unwrap());
        let (lo, hi) = (word(lo), word(hi));
        let key = |n: u64| {
            let factor = (n >> 6) << 52 | (n & 0x3f) << 20;
            (u128::from(factor ^ hi ^ SHORT as u64) << 64 | u128::from(1 ^ lo)).to_le_bytes()
        };
        (0..4096).map(key).collect()
    }

    #[test]
    fn input_that_is_crafted_for_a_known_seed_does_not_slow_a_job() {
        let keys = crafted();
        let known = table_of(&keys, Seed::KNOWN).probes();
        assert_eq!(
            known,
            keys.len() * (keys.len() - 1) / 2,
            "the keys collide under the seed they are made for"
        );
        for n in 1..20u128 {
            let seed =
                Seed::from_bytes(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_le_bytes());
            let table = table_of(&keys, seed);
            assert!(table.probes() < 4 * keys.len(), "{} probes", table.probes());
            let lists = table.into_entries().unwrap().partition(8, seed).unwrap();
            assert!(lists.iter().all(|list| (300..750).contains(&list.list.len())), "all shares have some");
        }
    }

    #[test]
    fn a_table_that_is_full_says_so() {
        let mut table = Table::new(SEED);
        table.most = 3;
        for n in [0u8, 1, 2, 1, 0] {
            table.add(Key::from(&[n][..]), 1u64, |sum, more| *sum += more);
        }
        assert_eq!(table.failed(), None);
        table.add(Key::from(&[3][..]), 1, |sum, more| *sum += more);
        assert!(table.failed().is_some() && table.into_entries().is_err());
    }

    fn contents(entries: &[Entries<u64>]) -> BTreeMap<Vec<u8>, u64> {
        let mut all = BTreeMap::new();
        for part in entries {
            for entry in &part.list {
                let key = entry.key(&part.arena, &mut [0; SHORT]).to_vec();
                assert_eq!(all.insert(key, entry.value), None, "a key twice");
            }
        }
        all
    }

    proptest! {
        #[test]
        fn it_is_a_map(keys in proptest::collection::vec(
            prop_oneof![
                proptest::collection::vec(0u8..3, 0..5),
                proptest::collection::vec(any::<u8>(), 0..40),
                proptest::collection::vec(0u8..2, 15..19),
            ], 0..400), parts in 1usize..20)
        {
            let mut table = Table::new(SEED);
            let mut model = BTreeMap::new();
            for (i, key) in keys.iter().enumerate() {
                table.add(Key::from(&key[..]), i as u64, |sum, more| *sum += more);
                *model.entry(key.clone()).or_insert(0) += i as u64;
            }
            let lists = table.into_entries().unwrap().partition(parts, SEED).unwrap();
            prop_assert_eq!(lists.len(), parts);
            prop_assert_eq!(&contents(&lists), &model);
            let mut again = Table::new(SEED);
            for list in lists {
                again.absorb(list, |sum, more| *sum += more);
            }
            prop_assert_eq!(&contents(&[again.into_entries().unwrap()]), &model);
        }

        #[test]
        fn keys_order_as_their_bytes(
            a in proptest::collection::vec(0u8..3, 0..20),
            b in proptest::collection::vec(0u8..3, 0..20))
        {
            let one = |key: &[u8]| {
                let mut table = Table::new(SEED);
                table.add(Key::from(key), (), |(), ()| ());
                table.into_entries().unwrap()
            };
            let (ea, eb) = (one(&a), one(&b));
            prop_assert_eq!(ea.list[0].cmp_key(&ea.arena, &eb.list[0], &eb.arena), a.cmp(&b));
        }
    }

    #[test]
    fn many_keys_survive_growth() {
        let mut table = Table::new(SEED);
        for round in 0..2u64 {
            for i in 0..100_000u64 {
                table.add(Key::from(format!("{i}").as_bytes()), 1 + round, |sum, more| *sum += more);
            }
        }
        let lists = table.into_entries().unwrap().partition(7, SEED).unwrap();
        assert!(lists.iter().all(|l| (100_000 / 7 * 9 / 10..100_000 / 7 * 11 / 10).contains(&l.list.len())));
        let all = contents(&lists);
        assert_eq!(all.len(), 100_000);
        assert!(all.values().all(|&v| v == 3));
    }
}
