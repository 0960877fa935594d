//! The service levels of an RNIC's queue pairs: which of them are in use, and what lower ones may have in
//! flight meanwhile.
//!
//! A port transmits a higher level first, but what lower levels have in flight already is before it in the
//! queues of the path, and at the peer. So while a higher level is in use, a lower one has little in flight,
//! and pauses.

use core::time::Duration;
use platform::Instant;

/// The number of service levels of InfiniBand; Ethernet has half as many.
const LEVELS: usize = 16;
/// The time after the last packet of a level for which the level counts as in use.
const IN_USE: Duration = Duration::from_millis(2);

/// The times at which the levels were in use last.
#[derive(Debug)]
pub struct Levels {
    /// The end of the use, by level.
    until: [Instant; LEVELS],
    /// True if a level above 0 has ever been in use.
    used: bool,
}

impl Default for Levels {
    fn default() -> Self {
        Self { until: [Instant::ZERO; LEVELS], used: false }
    }
}

impl Levels {
    /// Records that a packet of `level` is sent or received at `now`. Level 0 is below all others, so its
    /// use need not be known.
    #[inline]
    pub fn note(&mut self, level: u8, now: Instant) {
        if level > 0 {
            self.note_high(level, now);
        }
    }

    #[cold]
    fn note_high(&mut self, level: u8, now: Instant) {
        if let Some(until) = self.until.get_mut(usize::from(level)) {
            *until = now + IN_USE;
            self.used = true;
        }
    }

    /// Returns true if a level above 0 has ever been in use. Otherwise no queue pair yields.
    #[inline]
    #[must_use]
    pub const fn is_used(&self) -> bool {
        self.used
    }

    /// Returns true if a level above `level` is in use at `now`.
    #[must_use]
    pub fn yields(&self, level: u8, now: Instant) -> bool {
        self.until.iter().skip(usize::from(level) + 1).any(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_level_yields_while_a_higher_one_is_in_use() {
        let mut levels = Levels::default();
        let at = |tenths: u64| Instant::from_nanos(tenths * 200_000);
        levels.note(0, at(1));
        assert!(!levels.yields(0, at(1)) && !levels.yields(3, at(1)));
        levels.note(4, at(1));
        assert!(levels.yields(0, at(2)) && levels.yields(3, at(10)));
        assert!(!levels.yields(4, at(2)) && !levels.yields(15, at(2)));
        assert!(!levels.yields(0, at(11)), "the use has ended");
        levels.note(200, at(20));
        assert!(!levels.yields(0, at(20)), "there is no such level");
    }
}
