//! Bugs that can be planted in the manager to see that the simulation finds them. They exist in debug builds
//! with the feature `testing` only.
//!
//! The comment of each states the rule, the violation, and the place of the rule.

platform::bugs! {
    /// An incarnation is settled once all members have cut it off. With the bug it is settled as soon as they
    /// are told to. `docs/design/guarantees.md`, "The manager's silence": `Settled`.
    SettledAtOnce = "settled-at-once",
    /// A name is bound once. With the bug the last binding replaces earlier ones.
    /// `docs/design/guarantees.md`, "What the words mean": Names.
    NameBoundTwice = "name-bound-twice",
    /// The names of a node end with its incarnation. With the bug they stay.
    /// `docs/design/guarantees.md`, "What the words mean": Names.
    NamesOutliveOwner = "names-outlive-owner",
    /// Each binding of a name has a larger number. With the bug all have the same number.
    /// `docs/design/guarantees.md`, "What the words mean": Fencing token.
    BindingStands = "binding-stands",
    /// Incarnations and numbers of bindings grow across restarts. With the bug they start again.
    /// `docs/design/guarantees.md`, "What the words mean": Fencing token.
    NumbersBeginAnew = "numbers-begin-anew",
    /// A lease ends only after a time in which the manager could receive heartbeats. With the bug it also
    /// ends while the manager is deaf. `docs/design/guarantees.md`, "The manager's silence".
    DeafnessCounts = "deafness-counts",
}
