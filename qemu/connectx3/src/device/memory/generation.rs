//! Names of keys during one validity: from the creation of a key to its invalidation or reuse.
//!
//! A work request is checked when the card fetches it, and its memory is accessed later. An address in its
//! memory contains a name instead of the table's index. When the key is invalidated or reused, the name
//! becomes invalid.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The maximum number of names at a time, which is the maximum number of keys in use by work requests. One
/// more invalidates all names.
const MAX_NAMES: usize = 1 << 20;
/// The number of bits of a name.
pub(super) const NAME_BITS: u32 = 24;

/// A name. 0 is reserved for [`RESERVED_LKEY`](super::RESERVED_LKEY), which always stays valid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Name(pub u32);

/// The assigned names.
#[derive(Debug, Default)]
pub(super) struct Generations(Mutex<Names>);

#[derive(Debug, Default)]
struct Names {
    /// The key and the region's first address, by name.
    keys: HashMap<Name, (u32, u64)>,
    by_key: HashMap<u32, Name>,
    last: u32,
}

impl Names {
    fn next(&mut self) -> Name {
        loop {
            self.last = (self.last + 1) & ((1 << NAME_BITS) - 1);
            let name = Name(self.last);
            // The last value is reserved for addresses without memory.
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

    /// Returns the name of a valid key's current validity, and the region's first address at its beginning.
    pub(super) fn name(&self, key: u32, start: u64) -> (Name, u64) {
        let mut names = self.names();
        if let Some(&name) = names.by_key.get(&key) {
            return (name, names.keys.get(&name).map_or(start, |&(_, start)| start));
        }
        if names.keys.len() >= MAX_NAMES {
            log::warn!("{MAX_NAMES} keys are in use at a time: the requests that use them fail");
            names.keys.clear();
            names.by_key.clear();
        }
        let name = names.next();
        names.keys.insert(name, (key, start));
        names.by_key.insert(key, name);
        (name, start)
    }

    /// Returns the key of a name, and the region's first address, while the name is valid.
    pub(super) fn key(&self, name: Name) -> Option<(u32, u64)> {
        self.names().keys.get(&name).copied()
    }

    /// Invalidates the name of a key.
    pub(super) fn end(&mut self, key: u32) {
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
