//! The combining hash table: distinct keys, each with one value.
//!
//! An index of entry numbers with linear probing, at most half full, over a dense list of entries. A short key stands in
//! its entry and compares as two integers; of a long one the entry has the first eight bytes and a place in the arena.

use crate::OutOfMemory;
use crate::arena::{Arena, Place};
use crate::key::{Key, SHORT, Short, hash_long, word_of};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;

/// Length of the first index. Lengths are powers of two.
const FIRST_INDEX: usize = 1 << 10;

/// A key and its value.
#[derive(Debug)]
pub(crate) struct Entry<V> {
    /// The key's first eight bytes, little-endian, missing ones zero.
    lo: u64,
    /// Of a short key: the next eight. Of a long one: its place in the arena.
    hi: u64,
    hash: u32,
    len: u32,
    pub(crate) value: V,
}

impl<V> Entry<V> {
    /// Which of `parts` equal shares of the hash space the key belongs to.
    fn part(&self, parts: usize) -> usize {
        part_of(self.hash, parts)
    }

    /// The first eight bytes as a number that orders as they do.
    pub(crate) const fn prefix(&self) -> u64 {
        self.lo.swap_bytes()
    }

    fn is_short(&self) -> bool {
        self.len as usize <= SHORT
    }

    /// Bytes of the key.
    pub(crate) const fn key_len(&self) -> usize {
        self.len as usize
    }

    /// The key's bytes, those of a short key in `room`.
    pub(crate) fn key<'a>(&self, arena: &'a Arena, room: &'a mut [u8; SHORT]) -> &'a [u8] {
        if self.is_short() {
            *room = (u128::from(self.hi) << 64 | u128::from(self.lo)).to_le_bytes();
            &room[..self.key_len()]
        } else {
            arena.get(Place::from_word(self.hi), self.key_len())
        }
    }

    /// Compares keys bytewise.
    pub(crate) fn cmp_key(&self, arena: &Arena, other: &Self, other_arena: &Arena) -> Ordering {
        self.prefix().cmp(&other.prefix()).then_with(|| {
            if self.is_short() && other.is_short() {
                // Padding is zero: the shorter of two keys that differ in trailing zero bytes comes first.
                (self.hi.swap_bytes(), self.len).cmp(&(other.hi.swap_bytes(), other.len))
            } else {
                self.key(arena, &mut [0; SHORT]).cmp(other.key(other_arena, &mut [0; SHORT]))
            }
        })
    }
}

/// Which of `parts` equal shares of the hash space a hash falls into.
fn part_of(hash: u32, parts: usize) -> usize {
    ((u64::from(hash) * parts as u64) >> 32) as usize
}

/// Entries with distinct keys, in no order; long keys in an arena that several lists may share.
#[derive(Debug)]
pub(crate) struct Entries<V> {
    pub(crate) list: Vec<Entry<V>>,
    pub(crate) arena: Arc<Arena>,
}

/// Distinct keys and their values.
#[derive(Debug)]
pub(crate) struct Table<V> {
    /// Entry number plus one, or zero.
    index: Vec<u32>,
    entries: Vec<Entry<V>>,
    arena: Arena,
    /// Set once memory has run out: entries may be missing.
    failed: Option<OutOfMemory>,
}

impl<V> Table<V> {
    pub(crate) fn new() -> Self {
        Self { index: Vec::new(), entries: Vec::new(), arena: Arena::default(), failed: None }
    }

    /// Adds `value` to what the key has, by `combine` if it has something.
    #[inline]
    pub(crate) fn add(&mut self, key: Key<'_>, value: V, combine: impl FnOnce(&mut V, V)) {
        match key {
            Key::Short(key) => self.add_short(key, value, combine),
            Key::Long(key) => self.add_long(key.len(), |bytes| bytes.copy_from_slice(key), value, combine),
        }
    }

    #[inline]
    fn add_short(&mut self, key: Short, value: V, combine: impl FnOnce(&mut V, V)) {
        let hash = key.hash();
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
        let (Ok(len32), Ok(place)) = (u32::try_from(len), self.arena.push(len, fill)) else {
            self.failed = Some(OutOfMemory { wanted: len });
            return;
        };
        let key = self.arena.get(place, len);
        let (lo, hash) = (word_of(key), hash_long(key));
        let mask = self.index.len().wrapping_sub(1);
        let mut at = hash as usize & mask;
        while let Some(&number @ 1..) = self.index.get(at) {
            let entry = &mut self.entries[number as usize - 1];
            if entry.hash == hash
                && entry.len == len32
                && entry.lo == lo
                && self.arena.get(Place::from_word(entry.hi), len) == key
            {
                self.arena.pop(place);
                return combine(&mut entry.value, value);
            }
            at = (at + 1) & mask;
        }
        self.insert(Entry { lo, hi: place.to_word(), hash, len: len32, value });
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
        place_in(&mut self.index, hash, number);
    }

    /// Room for one more entry, and an index at most half full.
    fn make_room(&mut self) -> Result<(), OutOfMemory> {
        let len = self.entries.len();
        if len == self.entries.capacity() {
            // Half as much again once it is large: a list that doubles needs three times its size for a moment.
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
                place_in(&mut self.index, entry.hash, number);
            }
        }
        Ok(())
    }

    /// The entries as one list, or why some are missing.
    pub(crate) fn into_entries(self) -> Result<Entries<V>, OutOfMemory> {
        match self.failed {
            Some(e) => Err(e),
            None => Ok(Entries { list: self.entries, arena: Arc::new(self.arena) }),
        }
    }

    /// Whether memory has run out.
    pub(crate) fn failed(&self) -> Option<OutOfMemory> {
        self.failed
    }

    /// Adds all of `entries`.
    pub(crate) fn absorb(&mut self, entries: Entries<V>, combine: impl Fn(&mut V, V)) {
        for entry in entries.list {
            if entry.is_short() {
                let key = Short::from_parts(entry.lo, entry.hi, entry.len);
                self.add_short(key, entry.value, &combine);
            } else {
                let key = entries.arena.get(Place::from_word(entry.hi), entry.key_len());
                self.add(Key::Long(key), entry.value, &combine);
            }
        }
    }
}

impl<V> Entries<V> {
    /// Splits the list by hash into `parts` lists that share the arena.
    pub(crate) fn partition(self, parts: usize) -> Result<Vec<Self>, OutOfMemory> {
        if parts == 1 {
            return Ok(alloc::vec![self]);
        }
        let mut counts = alloc::vec![0usize; parts];
        for entry in &self.list {
            counts[entry.part(parts)] += 1;
        }
        let mut lists = Vec::with_capacity(parts);
        for count in counts {
            let mut list = Vec::new();
            let wanted = count * size_of::<Entry<V>>();
            list.try_reserve_exact(count).map_err(|_| OutOfMemory { wanted })?;
            lists.push(Self { list, arena: self.arena.clone() });
        }
        for entry in self.list {
            lists[entry.part(parts)].list.push(entry);
        }
        Ok(lists)
    }
}

/// Enters an entry's number at the first free position from its hash on.
fn place_in(index: &mut [u32], hash: u32, number: u32) {
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
            let mut table = Table::new();
            let mut model = BTreeMap::new();
            for (i, key) in keys.iter().enumerate() {
                table.add(Key::from(&key[..]), i as u64, |sum, more| *sum += more);
                *model.entry(key.clone()).or_insert(0) += i as u64;
            }
            let lists = table.into_entries().unwrap().partition(parts).unwrap();
            prop_assert_eq!(lists.len(), parts);
            prop_assert_eq!(&contents(&lists), &model);
            let mut again = Table::new();
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
                let mut table = Table::new();
                table.add(Key::from(key), (), |(), ()| ());
                table.into_entries().unwrap()
            };
            let (ea, eb) = (one(&a), one(&b));
            prop_assert_eq!(ea.list[0].cmp_key(&ea.arena, &eb.list[0], &eb.arena), a.cmp(&b));
        }
    }

    #[test]
    fn many_keys_survive_growth() {
        let mut table = Table::new();
        for round in 0..2u64 {
            for i in 0..100_000u64 {
                table.add(Key::from(format!("{i}").as_bytes()), 1 + round, |sum, more| *sum += more);
            }
        }
        let lists = table.into_entries().unwrap().partition(7).unwrap();
        assert!(lists.iter().all(|l| (100_000 / 7 * 9 / 10..100_000 / 7 * 11 / 10).contains(&l.list.len())));
        let all = contents(&lists);
        assert_eq!(all.len(), 100_000);
        assert!(all.values().all(|&v| v == 3));
    }
}
