//! The pauses between attempts.

use core::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);

/// Pauses that double from one second to one minute.
#[derive(Clone, Debug)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    /// Returns the next pause. `random` shortens it by up to a quarter, so that many nodes do not try at the
    /// same time.
    pub fn pause(&mut self, random: u32) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST);
        let less = pause.as_millis() as u64 / 4 * u64::from(random) / u64::from(u32::MAX);
        (pause - Duration::from_millis(less)).max(FIRST)
    }
}
