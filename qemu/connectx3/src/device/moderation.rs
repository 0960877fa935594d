//! Moderation of a queue's events or interrupts: each entry reports immediately, or the queue waits for a
//! number of entries or for a time since the first of them.

use super::layout::cq_context;
use super::mailbox::Mailbox;
use core::time::Duration;
use platform::Instant;

/// The interrupt moderation of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moderation {
    /// The longest delay of an entry's report; zero disables moderation.
    period: Duration,
    /// The number of entries at which the delay ends.
    count: u16,
    waiting: u16,
    due: Option<Instant>,
}

impl Moderation {
    /// Creates the moderation from the fields of a context or of MODIFY_CQ. Without a period nothing is
    /// delayed, because nothing would end the delay.
    #[must_use]
    pub(super) const fn new(period_us: u16, count: u16) -> Self {
        Self { period: Duration::from_micros(period_us as u64), count, waiting: 0, due: None }
    }

    /// Parses the settings in a context, which are at the same offsets for event and completion queues.
    pub(super) fn parse(context: &Mailbox) -> Self {
        Self::new(context.field(cq_context::PERIOD) as u16, context.field(cq_context::COUNT) as u16)
    }

    /// Writes the settings to a context.
    pub(super) fn put(&self, out: &mut Mailbox) {
        out.set(cq_context::PERIOD, self.period.as_micros() as u32);
        out.set(cq_context::COUNT, self.count.into());
    }

    /// Counts a new completion. Returns whether its event is due immediately. Calls `now` only if
    /// moderation is enabled.
    pub(super) fn occurred(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.period.is_zero() {
            return true;
        }
        self.waiting = self.waiting.saturating_add(1);
        if self.count != 0 && self.waiting >= self.count {
            self.set_reported();
            return true;
        }
        if self.due.is_none() {
            self.due = Some(now() + self.period);
        }
        false
    }

    /// Returns the time at which the delayed entries are due.
    #[must_use]
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Records that the entries were reported.
    pub(super) const fn set_reported(&mut self) {
        (self.waiting, self.due) = (0, None);
    }

    /// Replaces the settings. Returns whether entries are still waiting to be reported.
    pub(super) fn replace(&mut self, other: Self) -> bool {
        std::mem::replace(self, other).due.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_count_or_by_time() {
        let at = Instant::from_nanos;
        let mut moderation = Moderation::new(16, 3);
        assert!(!moderation.occurred(|| at(1000)));
        assert!(!moderation.occurred(|| at(5000)), "the first entry starts the timer");
        assert_eq!(moderation.due(), Some(at(17_000)));
        assert!(moderation.occurred(|| at(6000)));
        assert_eq!(moderation.due(), None);
        assert!(!moderation.occurred(|| at(7000)));
        assert_eq!(moderation.due(), Some(at(23_000)));
        assert!(Moderation::new(0, 44).occurred(|| unreachable!("no time without a period")));
        assert!(!Moderation::new(1, 0).occurred(|| at(0)));
        assert!(moderation.replace(Moderation::default()), "a delayed entry is due immediately");
    }
}
