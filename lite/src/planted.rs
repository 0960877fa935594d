//! Bugs that can be put into LITE to see that the simulation finds them. They exist in debug builds
//! with the feature `testing` only.
//!
//! Each breaks one safety argument of `docs/design/safety.md`, whose table lists them by name.

platform::bugs! {
    // ---- Calls ----

    /// A node that serves calls does not tell its callers that the ring has room again.
    LostCredit = "lost-credit",
    /// A caller writes into the peer's ring also where the peer has not read yet.
    RingOverrun = "ring-overrun",
    /// A call whose connection broke is made again, although it may have run.
    CallTwice = "call-twice",
    /// The slot of a call without a waiter serves the next call at once, under the same number, so
    /// that a late reply ends the wrong call.
    SlotReusedEarly = "slot-reused-early",
    /// A node agrees to close a connection that it uses.
    ClosedInUse = "closed-in-use",
    /// A voucher of a former incarnation of a node counts for the present one.
    VoucherOfAnotherLife = "voucher-of-another-life",
    /// A request for a connection is accepted again when it comes again.
    VoucherTwice = "voucher-twice",

    // ---- One-sided operations ----

    /// The issuing node does not compare offset and length with the region.
    NoBoundsCheck = "no-bounds-check",
    /// The issuing node does not check the rights of the handle.
    NoRightsCheck = "no-rights-check",
    /// A transfer or a call goes on after its deadline.
    NoDeadline = "no-deadline",
    /// An operation that was posted reports at its deadline that it had no effect, although it may
    /// still have one.
    UnknownAsDeadline = "unknown-as-deadline",
    /// An atomic whose connection broke is posted again, although it may have been executed.
    AtomicTwice = "atomic-twice",
    /// The bounce buffer of an operation without a waiter is given to another operation at once,
    /// while the RNIC may still use it.
    BounceReused = "bounce-reused",
    /// The operation of a dropped future keeps its slot and its bounce buffer for ever.
    FlightLeaks = "flight-leaks",
    /// An operation that broke with its connection counts as ended at once, although the peer's
    /// half of the connection may still execute it.
    LostUnconfirmed = "lost-unconfirmed",

    // ---- Regions ----

    /// The holders of a region that has moved keep using its former memory.
    StaleMap = "stale-map",
    /// The owner of a region that moves does not tell its holders to pause.
    MoveTellsNobody = "move-tells-nobody",
    /// A region uses its new memory although not all bytes were copied.
    HalfMoved = "half-moved",
    /// The owner of a region grants each node the rights that it requests.
    GrantsAll = "grants-all",
    /// The owner of a region does not compare its secret.
    NoSecretCheck = "no-secret-check",
    /// A revocation returns without word to the nodes that hold the right.
    RevokeTellsNobody = "revoke-tells-nobody",
    /// Memory is freed, and the nodes that map it are not told.
    FreeTellsNobody = "free-tells-nobody",
    /// Memory is freed without waiting for the operations of its holders that are in flight.
    FreeWaitsForNobody = "free-waits-for-nobody",
    /// The effect of a request whose answer was lost is not undone.
    UndoForgotten = "undo-forgotten",

    // ---- Deaths ----

    /// Memory that a dead node could access is used again once this node, and not each node, has
    /// cut the dead node off.
    FreedBeforeSettled = "freed-before-settled",
    /// A lock that a dead node held is granted once its home, and not each node, has cut the dead
    /// node off.
    LockBeforeSettled = "lock-before-settled",
    /// A node reports that it has cut a dead node off, and keeps its queue pairs to it.
    QueuePairsKept = "queue-pairs-kept",
    /// A node reports that it has cut a dead node off, and destroys its queue pairs a while later.
    CutOffLate = "cut-off-late",
    /// A mapping is installed although the owner of the region has died meanwhile.
    MappingOfTheDead = "mapping-of-the-dead",
    /// A claim, a holding or a wait is installed for a node that has died meanwhile.
    InstalledForTheDead = "installed-for-the-dead",
    /// A memset continues after the node that requested it has died.
    MemsetOfTheDead = "memset-of-the-dead",
    /// An address of a former incarnation of this node is taken for an address of the present one.
    FormerLifesMemory = "former-lifes-memory",
    /// A node whose lease has passed is not suspended.
    NeverSuspended = "never-suspended",

    // ---- Synchronisation ----

    /// A lock is granted to each node that claims it.
    DoubleGrant = "double-grant",
    /// A lock is released before the abandoned writes of its holder have ended.
    UnlockedUnsettled = "unlocked-unsettled",
    /// All grants of a lock have the same fencing token.
    TokenStands = "token-stands",
    /// The next exclusive holder of a lock is not told that the former one died with it.
    DeathNotTold = "death-not-told",
    /// A barrier opens although one node is missing.
    PartialBarrier = "partial-barrier",
    /// A signal of an event wakes nobody.
    LostSignal = "lost-signal",
    /// A signal of an event counts twice.
    SignalTwice = "signal-twice",
}
