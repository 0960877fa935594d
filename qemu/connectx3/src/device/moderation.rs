//! When a queue tells of its entries: at once, or when some have come or some time has passed since the first of them.

use super::mailbox::Mailbox;
use core::time::Duration;
use platform::Instant;

/// The moderation of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// How long the first entry may wait; zero: not at all.
    period: Duration,
    /// With so many entries it waits no longer.
    count: u16,
    waiting: u16,
    due: Option<Instant>,
}

impl Moderation {
    /// As a context or MODIFY_CQ says. Without a period nothing waits, since nothing would end that.
    #[must_use]
    pub const fn new(period_us: u16, count: u16) -> Self {
        Self { period: Duration::from_micros(period_us as u64), count, waiting: 0, due: None }
    }

    /// Shows it in a context.
    pub fn put(&self, out: &mut Mailbox) {
        out.put_u16(0x10, self.period.as_micros() as u16);
        out.put_u16(0x12, self.count);
    }

    /// Something is to be told of; gives whether at once. `now` is asked only if it matters.
    pub fn occurred(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.period.is_zero() {
            return true;
        }
        self.waiting = self.waiting.saturating_add(1);
        if self.count != 0 && self.waiting >= self.count {
            self.told();
            return true;
        }
        if self.due.is_none() {
            self.due = Some(now() + self.period);
        }
        false
    }

    /// When what waits is to be told of.
    #[must_use]
    pub const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// It has been told of.
    pub const fn told(&mut self) {
        (self.waiting, self.due) = (0, None);
    }

    /// Takes other limits; gives what is due from before.
    pub fn replace(&mut self, other: Self) -> bool {
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
        assert!(!moderation.occurred(|| at(5000)), "the first starts the time");
        assert_eq!(moderation.due(), Some(at(17_000)));
        assert!(moderation.occurred(|| at(6000)));
        assert_eq!(moderation.due(), None);
        assert!(!moderation.occurred(|| at(7000)));
        assert_eq!(moderation.due(), Some(at(23_000)));
        assert!(Moderation::new(0, 44).occurred(|| unreachable!("no time without a period")));
        assert!(!Moderation::new(1, 0).occurred(|| at(0)));
        assert!(moderation.replace(Moderation::default()), "what waited is due at once");
    }
}
