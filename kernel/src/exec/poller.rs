//! The interface of a poller, and the limits within which a core calls its pollers.

use core::time::Duration;
use platform::Instant;

/// A task that runs this long without a poll is interrupted for one.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The longest time for which a spinning core calls only the urgent pollers. A timer that is due ends it.
pub(super) const FULL_TURN: Duration = Duration::from_micros(300);
/// The time in one interrupt after which no further round of polls begins. A running round finishes.
pub(super) const INTERRUPT_POLL_LIMIT: Duration = Duration::from_micros(500);
/// Items (packets, completions) that a poller may handle in one call from the main loop.
pub(super) const BUDGET: u32 = 64;
/// Items that a poller may handle in one call from an interrupt.
pub(crate) const INTERRUPT_BUDGET: u32 = 16;

/// A part of the system that makes progress when it is polled: a NIC with its transport, the TCP stack, a
/// lease.
///
/// A poller is always called on the core on which it was registered, never twice at a time: from the main
/// loop or a task that waits, with interrupts on, or from an interrupt of a task with interrupts off. It must
/// not wait. Data that it shares with tasks must be lock-free or behind an
/// [`IrqMutex`](crate::sync::IrqMutex).
pub(crate) trait Poller: Send {
    /// Returns the name, for diagnostics.
    fn name(&self) -> &'static str;

    /// Handles up to `budget` items. Returns true if there was work.
    fn poll(&mut self, now: Instant, budget: u32) -> bool;

    /// Returns the time of the next poll if no interrupt comes before; [`Instant::MAX`] for never.
    fn next_deadline(&self) -> Instant;

    /// Returns true if tasks wait for this poller's events for microseconds only. A core that waits
    /// polls such pollers all the time, and the others once every [`FULL_TURN`] or more often.
    fn is_urgent(&self) -> bool {
        false
    }

    /// Returns true if [`poll`](Self::poll) may run in interrupt context. A poller that allocates, or wakes
    /// and drops tasks, must return false: it then waits for the main loop.
    fn may_interrupt(&self) -> bool {
        true
    }

    /// Returns true if [`poll`](Self::poll) may wake tasks. After its work, a task that polls yields. If not,
    /// another poller takes the results of this one, and wakes the tasks.
    fn wakes_tasks(&self) -> bool {
        true
    }

    /// Requests an interrupt at the next event. Returns true if events are waiting already; the core then
    /// polls again instead of halting. Called with interrupts off before a halt. The next `poll` may turn the
    /// interrupt off again.
    fn arm(&mut self) -> bool;
}
