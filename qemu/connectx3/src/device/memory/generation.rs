//! Names of keys while they are good.
//!
//! A work request is checked when the card takes it, and its memory is reached later. An address of its memory holds the
//! name of the key's life, not the table's index: when the key is taken away or given anew, the name means nothing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most names at a time: as many keys can be in use by work requests at once. With one more, all end.
const MOST: usize = 1 << 20;
/// Bits of a name.
pub const NAME_BITS: u32 = 24;

/// A name: never 0, which [`RESERVED_LKEY`](super::RESERVED_LKEY) has, whose life does not end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Name(pub u32);

/// The names given.
#[derive(Debug, Default)]
pub struct Generations(Mutex<Names>);

#[derive(Debug, Default)]
struct Names {
    /// By name: the key and the region's first address.
    keys: HashMap<Name, (u32, u64)>,
    by_key: HashMap<u32, Name>,
    last: u32,
}

impl Names {
    fn next(&mut self) -> Name {
        loop {
            self.last = (self.last + 1) & ((1 << NAME_BITS) - 1);
            let name = Name(self.last);
            // The last is that of addresses with nothing behind them.
            let last = (1 << NAME_BITS) - 1;
            if name.0 != 0 && name.0 != last && !self.keys.contains_key(&name) {
                return name;
            }
        }
    }
}

impl Generations {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the life that a good key has at present, and the region's first address at its beginning.
    pub fn name(&self, key: u32, start: u64) -> (Name, u64) {
        let mut names = self.names();
        if let Some(&name) = names.by_key.get(&key) {
            return (name, names.keys.get(&name).map_or(start, |&(_, start)| start));
        }
        if names.keys.len() >= MOST {
            log::warn!("{MOST} keys are in use at once: what uses them now ends");
            names.keys.clear();
            names.by_key.clear();
        }
        let name = names.next();
        names.keys.insert(name, (key, start));
        names.by_key.insert(key, name);
        (name, start)
    }

    /// The key with a name, and the region's first address, as long as its life lasts.
    pub fn key(&self, name: Name) -> Option<(u32, u64)> {
        self.names().keys.get(&name).copied()
    }

    /// The life of a key ends.
    pub fn end(&mut self, key: u32) {
        let names = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = names.by_key.remove(&key) {
            names.keys.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_with_its_key_and_is_not_given_again() {
        let mut generations = Generations::default();
        let (first, start) = generations.name(0x507, 0x1000);
        assert_eq!(start, 0x1000);
        assert_eq!(generations.name(0x507, 0x1000), (first, 0x1000));
        assert_eq!(generations.key(first), Some((0x507, 0x1000)));
        generations.end(0x507);
        assert_eq!(generations.key(first), None);
        let (second, _) = generations.name(0x507, 0x9000);
        assert_ne!(first, second);
        assert_eq!(generations.key(first), None);
    }
}
