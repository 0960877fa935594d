//! A record of the cores that write each lock and each shared word: a test shows by it that cores with
//! nothing in common write no common memory. In other builds the words are `core`'s.

#[cfg(not(all(feature = "testing", debug_assertions)))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

#[cfg(all(feature = "testing", debug_assertions))]
pub(crate) use recorded::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Writer};
#[cfg(all(feature = "testing", debug_assertions))]
pub use recorded::{record_writers, take_changes_of_writers};

#[cfg(all(feature = "testing", debug_assertions))]
pub(crate) use core::sync::atomic::Ordering;

#[cfg(all(feature = "testing", debug_assertions))]
mod recorded {
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;
    use core::panic::Location;
    use core::sync::atomic::{self, Ordering};
    use spin::{Mutex, Once};

    /// The most changes that are kept.
    const MOST: usize = 100;

    static CORE: Once<fn() -> usize> = Once::new();
    static CHANGES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// Records from now on which core, as `core` tells, writes each lock and each shared word. Only the first
    /// call has an effect.
    pub fn record_writers(core: fn() -> usize) {
        CORE.call_once(|| core);
    }

    /// Returns the places of the source at which a core has written a lock or a word that another core had
    /// written before, since the last call; at most 100.
    #[must_use]
    pub fn take_changes_of_writers() -> Vec<String> {
        core::mem::take(&mut *CHANGES.lock())
    }

    /// The core that wrote a lock or word last.
    #[derive(Default)]
    pub(crate) struct Writer(atomic::AtomicUsize);

    impl Writer {
        pub(crate) const fn new() -> Self {
            Self(atomic::AtomicUsize::new(0))
        }

        /// Notes a write of the present core.
        #[track_caller]
        #[inline]
        pub(crate) fn wrote(&self) {
            let Some(core) = CORE.get() else { return };
            let present = core() + 1;
            let former = self.0.swap(present, Ordering::Relaxed);
            if former != 0 && former != present {
                let mut changes = CHANGES.lock();
                if changes.len() < MOST {
                    let place = Location::caller();
                    changes.push(format!("{place}: core {} after core {}", present - 1, former - 1));
                }
            }
        }
    }

    macro_rules! words {
        ($($name:ident($value:ty): $($change:ident)*;)*) => {$(
            /// The equivalent of `core`'s word.
            #[derive(Default)]
            pub(crate) struct $name(atomic::$name, Writer);

            #[allow(dead_code, reason = "not each word has each change")]
            impl $name {
                pub(crate) const fn new(value: $value) -> Self {
                    Self(atomic::$name::new(value), Writer::new())
                }

                #[inline]
                pub(crate) fn load(&self, order: Ordering) -> $value {
                    self.0.load(order)
                }

                #[track_caller]
                #[inline]
                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    self.1.wrote();
                    self.0.store(value, order);
                }

                #[track_caller]
                #[inline]
                pub(crate) fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    next: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    self.1.wrote();
                    self.0.fetch_update(set, fetch, next)
                }

                $(
                    #[track_caller]
                    #[inline]
                    pub(crate) fn $change(&self, value: $value, order: Ordering) -> $value {
                        self.1.wrote();
                        self.0.$change(value, order)
                    }
                )*
            }
        )*};
    }

    words! {
        AtomicBool(bool): swap;
        AtomicU32(u32): swap fetch_add fetch_sub fetch_min fetch_max fetch_or fetch_and;
        AtomicU64(u64): swap fetch_add fetch_sub fetch_min fetch_max fetch_or fetch_and;
        AtomicUsize(usize): swap fetch_add fetch_sub fetch_min fetch_max fetch_or fetch_and;
    }
}
