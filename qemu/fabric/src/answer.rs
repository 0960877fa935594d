//! Answers: for a short time after the fabric has given frames to a machine, it looks for the machine's
//! frames without a kick.
//!
//! A kick costs the machine several microseconds, and to wake the fabric's thread takes longer still. But a
//! thread that looks occupies a processor, and a machine that shares this processor cannot answer meanwhile.
//! The fabric therefore looks less often for the answers of a machine that come too late.

use std::time::{Duration, Instant};

/// The time for which an answer is looked for.
const LENGTH: Duration = Duration::from_micros(20);
/// The most deliveries to a machine after which its answer is not looked for.
const MAX_PAUSE: u32 = 256;

/// The answer of one machine.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// The end of the time for which the answer is looked for.
    until: Option<Instant>,
    /// The number of deliveries after which the answer is not looked for.
    left: u32,
    /// The pause after the last look in vain, in deliveries.
    pause: u32,
}

impl Answer {
    /// Records a delivery to the machine. Returns true if its answer is looked for.
    pub(crate) fn expect(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.until = Some(now() + LENGTH);
        true
    }

    /// Records frames of the machine.
    pub(crate) const fn came(&mut self) {
        if self.until.take().is_some() {
            self.pause = 0;
        }
    }

    /// Returns true while the answer is looked for. The end of a look in vain begins a pause, which is twice
    /// as long as the one before.
    pub(crate) fn is_awaited(&mut self, now: impl FnOnce() -> Instant) -> bool {
        let Some(until) = self.until else { return false };
        if now() < until {
            return true;
        }
        self.until = None;
        self.pause = (2 * self.pause).clamp(1, MAX_PAUSE);
        self.left = self.pause;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_looked_for_until_it_comes() {
        let (mut answer, now) = (Answer::default(), Instant::now());
        assert!(!answer.is_awaited(|| now));
        assert!(answer.expect(|| now));
        assert!(answer.is_awaited(|| now));
        answer.came();
        assert!(!answer.is_awaited(|| now));
        assert!(answer.expect(|| now), "an answer in time begins no pause");
    }

    #[test]
    fn looks_in_vain_become_rare_until_an_answer_comes() {
        let (mut answer, now) = (Answer::default(), Instant::now());
        for pause in [1, 2, 4, 8, 16, 32, 64, 128, 256, 256] {
            assert!(answer.expect(|| now));
            assert!(!answer.is_awaited(|| now + LENGTH));
            for _ in 0..pause {
                assert!(!answer.expect(|| now), "a pause of {pause} deliveries");
            }
        }
        assert!(answer.expect(|| now));
        answer.came();
        assert!(answer.expect(|| now));
        assert!(!answer.is_awaited(|| now + LENGTH));
        assert!(!answer.expect(|| now) && answer.expect(|| now), "the pauses begin anew");
    }

    #[test]
    fn frames_without_a_look_leave_a_pause_as_it_is() {
        let (mut answer, now) = (Answer::default(), Instant::now());
        answer.expect(|| now);
        assert!(!answer.is_awaited(|| now + LENGTH));
        answer.came();
        assert!(!answer.expect(|| now));
    }
}
