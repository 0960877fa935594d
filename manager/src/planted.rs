//! Bugs that can be put into the manager to see that the simulation finds them, as `lite/src/planted.rs` has them for LITE. They
//! exist in debug builds with the feature `testing` only.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A life is settled once all members have cut it off. It is as soon as they are told to. `docs/lite.md`, "The manager's
    /// silence": `Settled`.
    SettledAtOnce,
    /// A name is bound once. Whoever binds it last has it. `docs/lite.md`, "What the words mean": Names.
    NameBoundTwice,
    /// The names of a node end with its life. They stay. `docs/lite.md`, "What the words mean": Names.
    NamesOutliveOwner,
    /// Each binding of a name has a larger number. All have one number. `docs/lite.md`, "What the words mean": Fencing token.
    BindingStands,
    /// Incarnations and numbers of bindings grow over restarts. They begin anew. `docs/lite.md`, "What the words mean": Fencing
    /// token.
    NumbersBeginAnew,
    /// A lease ends because the manager was able to hear a node and did not. It ends while the manager is deaf. `docs/lite.md`,
    /// "The manager's silence".
    DeafnessCounts,
}

#[cfg(all(feature = "testing", debug_assertions))]
mod here {
    use super::Bug;
    use std::sync::atomic::{AtomicU8, Ordering};

    impl Bug {
        /// All of them.
        pub const ALL: &[Self] = &[
            Self::SettledAtOnce,
            Self::NameBoundTwice,
            Self::NamesOutliveOwner,
            Self::BindingStands,
            Self::NumbersBeginAnew,
            Self::DeafnessCounts,
        ];

        /// The name, as an operator types it.
        #[must_use]
        pub const fn name(self) -> &'static str {
            match self {
                Self::SettledAtOnce => "settled-at-once",
                Self::NameBoundTwice => "name-bound-twice",
                Self::NamesOutliveOwner => "names-outlive-owner",
                Self::BindingStands => "binding-stands",
                Self::NumbersBeginAnew => "numbers-begin-anew",
                Self::DeafnessCounts => "deafness-counts",
            }
        }
    }

    /// No bug.
    const NONE: u8 = u8::MAX;

    static PLANTED: AtomicU8 = AtomicU8::new(NONE);

    /// From now on every manager of this process has that bug.
    pub fn plant(bug: Bug) {
        PLANTED.store(bug as u8, Ordering::Relaxed);
    }

    pub(crate) fn planted(bug: Bug) -> bool {
        PLANTED.load(Ordering::Relaxed) == bug as u8
    }
}

#[cfg(all(feature = "testing", debug_assertions))]
pub use here::plant;
#[cfg(all(feature = "testing", debug_assertions))]
pub(crate) use here::planted;

#[cfg(not(all(feature = "testing", debug_assertions)))]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}
