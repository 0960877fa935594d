//! The spin of a core that has nothing to do: its length adapts to the halts, and to a host with too few
//! processors.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use platform::Instant;

use crate::arch::cpu;

/// The longest spin before a halt of a core that has pollers, in nanoseconds: longer than RDMA operations
/// take, so that neither their issuer nor their target is halted when the next packet comes. It is as long as
/// a tick of a usual host's scheduler, because the host's thread that moves frames may have to wait for one.
static MAX_SPIN_NS: AtomicU64 = AtomicU64::new(4_000_000);
/// The longest spin before a halt of a core without pollers. It waits for tasks that other cores make ready.
const MAX_SPIN_FOR_TASKS: Duration = Duration::from_micros(50);
/// The longest halt after which the spin grows: a longer spin would have seen the event that ended the halt.
const SHORT_HALT: Duration = Duration::from_millis(1);
/// The first and the shortest spin before a halt.
const FIRST_SPIN: Duration = Duration::from_micros(5);
/// A turn without work that takes longer shows that the host has run something else on this processor.
const STOLEN: Duration = Duration::from_millis(1);
/// The time for which a core does not spin after the host has taken its processor away: at first, and at
/// most. It doubles if that happens again before the core could spin for twice as long. A host that has too
/// few processors takes one away within some milliseconds of each spin, and other hosts do so now and then.
const MODEST: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// Sets the longest spin before a halt.
pub(crate) fn set_max_spin(spin: Duration) {
    MAX_SPIN_NS.store(spin.as_nanos() as u64, Ordering::Relaxed);
}

/// Returns the longest spin of a core before a halt.
pub(super) fn max_spin(has_pollers: bool) -> Duration {
    let max = Duration::from_nanos(MAX_SPIN_NS.load(Ordering::Relaxed));
    if has_pollers { max } else { max.min(MAX_SPIN_FOR_TASKS) }
}

/// The spin of a core, in its main loop or within a task that waits. Its length grows while halts are short,
/// so that an imminent event finds the core awake, and shrinks when halts are long. Only the core uses it.
///
/// On a host with fewer processors than runnable threads a spin only delays the others, among them the host's
/// thread that moves this machine's frames: the host takes the processor away in the middle of the spin. The
/// core then halts for a while instead.
pub(super) struct Idle {
    length: Cell<Duration>,
    /// The end of the spin that began last.
    end: Cell<Instant>,
    /// The core does not spin before.
    not_before: Cell<Instant>,
    /// The time without a spin that ended there.
    modest: Cell<Duration>,
    /// True if a task has worked since the last spin began.
    has_worked: Cell<bool>,
    /// False under TCG, which leaves its execution loop at every PAUSE and acquires QEMU's global lock when
    /// it re-enters. QEMU's I/O thread then waits for that lock, which delays the very event for which the
    /// core spins.
    pauses: bool,
}

impl Idle {
    pub(super) fn new() -> Self {
        Self {
            length: Cell::new(FIRST_SPIN),
            end: Cell::new(Instant::ZERO),
            not_before: Cell::new(Instant::ZERO),
            modest: Cell::new(Duration::ZERO),
            has_worked: Cell::new(false),
            pauses: !cpu::is_tcg(),
        }
    }

    /// Begins a spin at `now`, after work.
    pub(super) fn begin(&self, now: Instant) {
        self.end.set(now + self.length.get());
        self.has_worked.set(false);
    }

    /// Notes that a task works.
    pub(super) fn note_work(&self) {
        self.has_worked.set(true);
    }

    /// Returns true if a task has worked since the last spin began.
    pub(super) fn has_worked(&self) -> bool {
        self.has_worked.get()
    }

    /// Returns true if the spin lasts at `now`.
    pub(super) fn lasts(&self, now: Instant) -> bool {
        now < self.end.get()
    }

    /// Lets the other thread of a processor's core run, between two turns of a spin.
    pub(super) fn pause(&self) {
        if self.pauses {
            core::hint::spin_loop();
        }
    }

    /// Adapts the spin to a halt that has ended at `now`, if the longest spin is `max`.
    pub(super) fn after_halt(&self, now: Instant, halted: Duration, max: Duration) {
        self.length.set(if now < self.not_before.get() {
            Duration::ZERO
        } else if halted <= SHORT_HALT.min(max) {
            (self.length.get() * 2).max(FIRST_SPIN).min(max)
        } else {
            self.length.get() / 4
        });
    }

    /// Adapts the spin to a turn without work that began at `from`; the next turn begins at `now`.
    #[inline]
    pub(super) fn after_turn(&self, from: Instant, now: Instant) {
        if now > from + STOLEN {
            self.end_for_now(now);
        }
    }

    /// Ends the spin at `now`, and prevents others for a while.
    #[cold]
    fn end_for_now(&self, now: Instant) {
        let modest = self.modest.get();
        let again = now < self.not_before.get() + 2 * modest;
        self.modest.set(if again { (modest * 2).min(MODEST.1) } else { MODEST.0 });
        self.not_before.set(now + self.modest.get());
        self.length.set(Duration::ZERO);
        self.end.set(now);
    }
}
