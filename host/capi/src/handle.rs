//! Handles: the numbers that C holds in place of pointers.
//!
//! A handle contains the index of a table entry and the generation of that entry. So a handle that was
//! given back, or that the library never made, is detected, and nothing is read through it. A call takes a
//! reference to the object of the handle before it does anything: an object that another thread closes
//! meanwhile stays valid until the last call that uses it has ended.

use crate::status::{Failure, fl_status};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The bits of a handle, from the top: its kind (never 0, so that no handle is null, and so that the
/// processor has no memory at such an address), the generation of its entry, the index of its entry.
const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 36;
const LAST_GENERATION: u64 = (1 << GENERATION_BITS) - 1;
/// The largest number of handles of one kind.
const MOST: usize = 1 << INDEX_BITS;

const _: () = assert!(usize::BITS == 64, "a handle fills a pointer of 64 bits");

/// A type of the C interface of which only handles exist.
pub(crate) trait Handle: Sized {
    /// The kind number in the type's handles: 1 to 15, different for each type.
    const KIND: u64;
    const NAME: &'static str;
    /// The type of the objects that the handles refer to.
    type Held: Send + Sync + 'static;

    fn table() -> &'static Table<Self::Held>;
}

/// The objects of all handles of one kind.
pub(crate) struct Table<T>(RwLock<Entries<T>>);

struct Entries<T> {
    all: Vec<Entry<T>>,
    free: Vec<usize>,
}

struct Entry<T> {
    /// The generation of the handle in use, or of the next one.
    generation: u64,
    held: Option<Arc<T>>,
}

/// The parts of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    index: usize,
    generation: u64,
}

impl Name {
    /// Returns the parts of a handle if the handle is of the kind `kind`.
    fn of(number: usize, kind: u64) -> Option<Self> {
        let number = number as u64;
        (number >> (INDEX_BITS + GENERATION_BITS) == kind).then_some(Self {
            index: number as usize & (MOST - 1),
            generation: number >> INDEX_BITS & LAST_GENERATION,
        })
    }

    fn number(self, kind: u64) -> usize {
        (kind << (INDEX_BITS + GENERATION_BITS) | self.generation << INDEX_BITS | self.index as u64) as usize
    }
}

/// The reason for which a handle is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stale {
    /// The handle was given back by its user.
    Closed,
    /// The library never made such a handle.
    Unknown,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self(RwLock::new(Entries { all: Vec::new(), free: Vec::new() }))
    }

    fn read(&self) -> RwLockReadGuard<'_, Entries<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Entries<T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an object and returns its handle; `None` if the table is full.
    fn add(&self, held: T) -> Option<Name> {
        let held = Arc::new(held);
        let mut table = self.write();
        let index = match table.free.pop() {
            Some(index) => index,
            None if table.all.len() < MOST => {
                table.all.push(Entry { generation: 0, held: None });
                table.all.len() - 1
            }
            None => return None,
        };
        let entry = table.all.get_mut(index)?;
        entry.held = Some(held);
        Some(Name { index, generation: entry.generation })
    }

    /// Returns a reference to the object of a handle.
    fn get(&self, name: Name) -> Result<Arc<T>, Stale> {
        let table = self.read();
        let entry = table.all.get(name.index).ok_or(Stale::Unknown)?;
        match &entry.held {
            Some(held) if entry.generation == name.generation => Ok(held.clone()),
            _ if name.generation < entry.generation => Err(Stale::Closed),
            _ => Err(Stale::Unknown),
        }
    }

    /// Removes a handle. One of several callers gets the object, the others get `Closed`.
    fn remove(&self, name: Name) -> Result<Arc<T>, Stale> {
        let mut table = self.write();
        let entry = table.all.get_mut(name.index).ok_or(Stale::Unknown)?;
        if entry.generation != name.generation {
            return Err(if name.generation < entry.generation { Stale::Closed } else { Stale::Unknown });
        }
        let held = entry.held.take().ok_or(Stale::Unknown)?;
        entry.generation += 1;
        // An entry whose generations are used up is not used again.
        if entry.generation <= LAST_GENERATION {
            table.free.push(name.index);
        }
        Ok(held)
    }
}

/// Makes a handle for the caller.
pub(crate) fn make<H: Handle>(held: H::Held) -> Result<*mut H, Failure> {
    let name = H::table().add(held);
    let name = name.ok_or_else(|| {
        Failure::new(fl_status::FL_NO_MEMORY, format_args!("{MOST} {}s at once are too many", H::NAME))
    })?;
    Ok(std::ptr::without_provenance_mut(name.number(H::KIND)))
}

/// Returns a reference to the object of a handle, which keeps it valid during the call.
pub(crate) fn get<H: Handle>(handle: *const H, what: &str) -> Result<Arc<H::Held>, Failure> {
    H::table().get(name(handle, what)?).map_err(|stale| failure::<H>(stale, what))
}

/// Removes a handle. Calls that use its object go on.
pub(crate) fn take<H: Handle>(handle: *mut H, what: &str) -> Result<Arc<H::Held>, Failure> {
    H::table().remove(name(handle, what)?).map_err(|stale| failure::<H>(stale, what))
}

fn name<H: Handle>(handle: *const H, what: &str) -> Result<Name, Failure> {
    if handle.is_null() {
        return Err(Failure::invalid(format_args!("{what} is null")));
    }
    Name::of(handle.addr(), H::KIND).ok_or_else(|| failure::<H>(Stale::Unknown, what))
}

fn failure<H: Handle>(stale: Stale, what: &str) -> Failure {
    match stale {
        Stale::Closed => {
            Failure::new(fl_status::FL_CLOSED, format_args!("{what}: this {} was given back", H::NAME))
        }
        Stale::Unknown => Failure::invalid(format_args!("{what} is no {} of this library", H::NAME)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_good_until_it_is_given_back_once() {
        let table = Table::new();
        let first = table.add("first").unwrap();
        let share = table.get(first).unwrap();
        assert_eq!(table.remove(first).as_deref(), Ok(&"first"));
        assert_eq!(*share, "first", "a call that is under way goes on");
        assert_eq!((table.get(first), table.remove(first)), (Err(Stale::Closed), Err(Stale::Closed)));
        let second = table.add("second").unwrap();
        assert_eq!(second.index, first.index, "the index is used again");
        assert_eq!((table.get(first), table.remove(first)), (Err(Stale::Closed), Err(Stale::Closed)));
        assert_eq!(table.get(second).as_deref(), Ok(&"second"));
    }

    #[test]
    fn what_was_never_given_is_no_handle() {
        let table = Table::new();
        let only = table.add(()).unwrap();
        for name in
            [Name { index: 1, ..only }, Name { generation: 1, ..only }, Name { index: MOST - 1, ..only }]
        {
            assert_eq!((table.get(name), table.remove(name)), (Err(Stale::Unknown), Err(Stale::Unknown)));
        }
        assert_eq!(Name::of(only.number(3), 3), Some(only));
        assert_eq!(Name::of(only.number(3), 2), None);
        assert_eq!(Name::of(0x7fff_1234_5678, 3), None, "an address of a process's memory");
        let last = Name { index: MOST - 1, generation: LAST_GENERATION };
        assert_eq!(Name::of(last.number(15), 15), Some(last));
    }

    #[test]
    fn a_place_whose_generations_are_used_up_is_left() {
        let table = Table::new();
        let first = table.add(1).unwrap();
        table.write().all[first.index].generation = LAST_GENERATION;
        let last = Name { generation: LAST_GENERATION, ..first };
        assert_eq!(table.remove(last).as_deref(), Ok(&1));
        assert_eq!(table.get(last), Err(Stale::Closed));
        assert_eq!(table.add(2).map(|name| name.index), Some(1));
    }

    /// If many threads give the same handles back, each handle goes to one thread, and its object is
    /// dropped once.
    #[test]
    fn threads_that_close_one_handle_close_it_once() {
        static DROPPED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        struct Counted;
        impl Drop for Counted {
            fn drop(&mut self) {
                DROPPED.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let table = Table::new();
        let names: Vec<Name> = (0..1000).map(|_| table.add(Counted).unwrap()).collect();
        let closed: usize = std::thread::scope(|threads| {
            let close = || {
                names.iter().filter(|name| table.get(**name).is_ok() & table.remove(**name).is_ok()).count()
            };
            let all: Vec<_> = (0..4).map(|_| threads.spawn(close)).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((closed, DROPPED.load(std::sync::atomic::Ordering::SeqCst)), (1000, 1000));
    }
}
