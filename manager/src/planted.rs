//! Bugs that can be planted in the manager, to check that the simulation finds them, like those of LITE in
//! `lite/src/planted.rs`. They exist only in debug builds with the feature `testing`.

/// A bug. Its comment states the rule, the violation, and the place of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// An incarnation is settled once all members have cut it off. With the bug it is settled as soon as they
    /// are told to. `docs/design/guarantees.md`, "The manager's silence": `Settled`.
    SettledAtOnce,
    /// A name is bound once. With the bug the last binding replaces earlier ones.
    /// `docs/design/guarantees.md`, "What the words mean": Names.
    NameBoundTwice,
    /// The names of a node end with its incarnation. With the bug they stay.
    /// `docs/design/guarantees.md`, "What the words mean": Names.
    NamesOutliveOwner,
    /// Each binding of a name has a larger number. With the bug all have the same number.
    /// `docs/design/guarantees.md`, "What the words mean": Fencing token.
    BindingStands,
    /// Incarnations and numbers of bindings grow across restarts. With the bug they start again.
    /// `docs/design/guarantees.md`, "What the words mean": Fencing token.
    NumbersBeginAnew,
    /// A lease ends only after a time in which the manager could receive heartbeats. With the bug it also
    /// ends while the manager is deaf. `docs/design/guarantees.md`, "The manager's silence".
    DeafnessCounts,
}

#[cfg(all(feature = "testing", debug_assertions))]
mod here {
    use super::Bug;
    use std::sync::atomic::{AtomicU8, Ordering};

    impl Bug {
        /// All bugs.
        pub const ALL: &[Self] = &[
            Self::SettledAtOnce,
            Self::NameBoundTwice,
            Self::NamesOutliveOwner,
            Self::BindingStands,
            Self::NumbersBeginAnew,
            Self::DeafnessCounts,
        ];

        /// Returns the name, as an operator types it.
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

    /// The value without a bug.
    const NONE: u8 = u8::MAX;

    static PLANTED: AtomicU8 = AtomicU8::new(NONE);

    /// Plants the bug in every manager of this process.
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
