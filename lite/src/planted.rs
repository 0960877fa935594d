//! Bugs that can be put into LITE to see that the simulation finds them. They exist in debug builds
//! with the feature `testing` only.
//!
//! Each breaks one safety argument of `docs/design/safety.md`; its comment begins with the argument, and
//! ends with the place there.

/// Makes the enumeration, and the list of all with their names.
macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $bug:ident = $name:literal,)+) => {
        /// A bug.
        #[cfg_attr(
            not(all(feature = "testing", debug_assertions)),
            expect(unreachable_pub, reason = "only `testing` re-exports it")
        )]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($(#[doc = $doc])+ $bug,)+
        }

        #[cfg(all(feature = "testing", debug_assertions))]
        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$bug,)+];

            /// The name, as an operator types it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)+
                }
            }
        }
    };
}

bugs! {
    // ---- Calls ----

    /// A ring is written only where its reader has read. Who serves calls does not tell callers
    /// that there is room again. "Defects of the original": the ring.
    LostCredit = "lost-credit",
    /// A ring is written only where its reader has read. Callers write on without room. "Defects of
    /// the original": the ring.
    RingOverrun = "ring-overrun",
    /// A call runs at most once. A call whose connection broke is made again. "What the words mean": Unknown.
    CallTwice = "call-twice",
    /// A reply belongs to one call. The slot of a call that nobody waits for any more serves the
    /// next call at once, under the same number. "What the words mean": Unknown.
    SlotReusedEarly = "slot-reused-early",
    /// A question is for one life of a node. The next life of that node answers it. "What the words
    /// mean": Nothing is installed.
    AnotherLife = "another-life",
    /// A connection that is closed is used at neither end. An end agrees to close a connection that
    /// it uses. "What the words mean": Connections.
    ClosedInUse = "closed-in-use",

    // ---- One-sided operations ----

    /// An operation reaches the bytes of its region only. The issuing node does not compare offset
    /// and length with the region. "Defects of the original": bounds.
    NoBoundsCheck = "no-bounds-check",
    /// An operation has the rights of its handle. The issuing node does not look at them. "What the
    /// words mean": Granted.
    NoRightsCheck = "no-rights-check",
    /// An operation ends by its deadline. A transfer or a call goes on. "Defects of the original": deadlines.
    NoDeadline = "no-deadline",
    /// What may still happen is said to be unknown. At its deadline, an operation that was posted
    /// is said to have had no effect. "What the words mean": Unknown.
    UnknownAsDeadline = "unknown-as-deadline",
    /// An atomic happens at most once. An atomic whose connection broke is posted again. "What the
    /// words mean": Unknown.
    AtomicTwice = "atomic-twice",
    /// A bounce buffer is in quarantine while the RNIC may use it. The buffer of an operation that
    /// nobody waits for any more is another's at once. "Defects of the original": processors that
    /// work at once.
    BounceReused = "bounce-reused",
    /// What a dropped future held ends with the operation. Its slot and its bounce buffer stay
    /// taken. "Defects of the original": unmap, unregister, free, leave.
    FlightLeaks = "flight-leaks",
    /// What broke with a connection may still arrive until the peer has ended its half. It counts
    /// as ended at once. "What the words mean": Unknown.
    LostUnconfirmed = "lost-unconfirmed",

    // ---- Regions ----

    /// After a region has moved, its holders use the new place. They go on at the old one. "What
    /// the words mean": A move.
    StaleMap = "stale-map",
    /// While a region moves, its holders keep still. The owner does not tell them to. "What the
    /// words mean": A move.
    MoveTellsNobody = "move-tells-nobody",
    /// A move ends in one of two states. The region is in its new place though not all was copied.
    /// "What the words mean": A move.
    HalfMoved = "half-moved",
    /// Who maps a region gets no more than it is granted. The owner grants whatever is asked for.
    /// "What the words mean": Granted.
    GrantsAll = "grants-all",
    /// A region with a secret is mapped by those who know it. The owner does not compare it.
    /// "Calls": `liteapi_ask_mr`.
    NoSecretCheck = "no-secret-check",
    /// What is revoked is refused once the call has returned. The holders are not told. "What the
    /// words mean": Revoked, freed.
    RevokeTellsNobody = "revoke-tells-nobody",
    /// Memory that is freed is reached by nobody. The holders are not told. "What the words mean":
    /// Revoked, freed.
    FreeTellsNobody = "free-tells-nobody",
    /// Memory that is freed is reached by nobody. What the holders had on the wire is not waited
    /// for. "What the words mean": Revoked, freed.
    FreeWaitsForNobody = "free-waits-for-nobody",
    /// What an answer that is lost has installed is undone. Nobody undoes it. "Defects of the
    /// original": unmap, unregister, free, leave.
    UndoForgotten = "undo-forgotten",

    // ---- Deaths ----

    /// Memory that a dead node could reach is used again after all have cut it off. It is when this
    /// node has. "What the words mean": A dead node's mappings.
    FreedBeforeSettled = "freed-before-settled",
    /// A lock that a dead node held passes on after all have cut it off. It does when its home has.
    /// "The manager's silence":
    /// `Settled`.
    LockBeforeSettled = "lock-before-settled",
    /// A node says that it has cut a dead node off after it has. Its queue pairs to the dead node
    /// stay. "The manager's silence":
    /// `LeftSeen`.
    QueuePairsKept = "queue-pairs-kept",
    /// Nothing is installed for a life that has ended. A mapping of a dead owner is. "What the
    /// words mean": Nothing is installed.
    MappingOfTheDead = "mapping-of-the-dead",
    /// Nothing is installed for a life that has ended. A claim, a holding or a wait of a dead node
    /// is. "What the words mean": Nothing is installed.
    InstalledForTheDead = "installed-for-the-dead",
    /// What a node does for another stops with the other's life. A memset goes on. "What the words
    /// mean": Nothing is installed.
    MemsetOfTheDead = "memset-of-the-dead",
    /// Addresses are of one life of a node. Those of a former life under this node's number are
    /// taken for this one's. "What the words mean": A dead node's mappings.
    FormerLifesMemory = "former-lifes-memory",
    /// A suspended node posts nothing new. It is never suspended. "The manager's silence".
    NeverSuspended = "never-suspended",

    // ---- Synchronisation ----

    /// A lock has one holder. It is given to whoever asks. "Defects of the original": lock tickets.
    DoubleGrant = "double-grant",
    /// The next holder finds memory that no former holder changes. The lock goes back before writes
    /// that were given up have ended. "What the words mean": Unknown.
    UnlockedUnsettled = "unlocked-unsettled",
    /// Each grant has a larger fencing token. All grants of a lock have one token. "What the words
    /// mean": Fencing token.
    TokenStands = "token-stands",
    /// The next exclusive holder hears of a death. It does not. "Calls": `liteapi_lock`.
    DeathNotTold = "death-not-told",
    /// A barrier lets all pass or none. It opens when one is missing. "What is not so yet": a
    /// barrier's waiters.
    PartialBarrier = "partial-barrier",
    /// A signal of an event wakes who waits for it. It does not. "Calls": `create_event`.
    LostSignal = "lost-signal",
    /// A signal of an event counts once. It counts twice. "Calls": `create_event`.
    SignalTwice = "signal-twice",
}

#[cfg(all(feature = "testing", debug_assertions))]
mod here {
    use super::Bug;
    use core::sync::atomic::{AtomicU8, Ordering};

    /// No bug.
    const NONE: u8 = u8::MAX;

    static PLANTED: AtomicU8 = AtomicU8::new(NONE);

    /// From now on every node of this process has that bug.
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
