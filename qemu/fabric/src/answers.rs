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
#[derive(Clone, Debug, Default)]
struct Answer {
    /// The end of the time for which the answer is looked for.
    until: Option<Instant>,
    /// The number of deliveries until the answer is looked for again.
    left: u32,
    /// The pause after the last look in vain, in deliveries.
    pause: u32,
}

/// The answers of all machines, by port.
#[derive(Debug)]
pub(crate) struct Answers(Vec<Answer>);

impl Answers {
    pub(crate) fn new(ports: usize) -> Self {
        Self(vec![Answer::default(); ports])
    }

    /// Records a delivery to a port's machine. Returns true if its answer is looked for.
    pub(crate) fn expect(&mut self, port: usize, now: impl FnOnce() -> Instant) -> bool {
        let answer = &mut self.0[port];
        if answer.left > 0 {
            answer.left -= 1;
            return false;
        }
        answer.until = Some(now() + LENGTH);
        true
    }

    /// Records frames of a port's machine.
    pub(crate) fn came(&mut self, port: usize) {
        let answer = &mut self.0[port];
        if answer.until.take().is_some() {
            answer.pause = 0;
        }
    }

    /// Returns true while the answer of a port's machine is looked for. The end of a look in vain begins a
    /// pause, which is twice as long as the one before.
    pub(crate) fn is_awaited(&mut self, port: usize, now: impl FnOnce() -> Instant) -> bool {
        let answer = &mut self.0[port];
        let Some(until) = answer.until else { return false };
        if now() < until {
            return true;
        }
        answer.until = None;
        answer.pause = (2 * answer.pause).clamp(1, MAX_PAUSE);
        answer.left = answer.pause;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_looked_for_until_it_comes() {
        let (mut answers, now) = (Answers::new(2), Instant::now());
        assert!(!answers.is_awaited(1, || now));
        assert!(answers.expect(1, || now));
        assert!(answers.is_awaited(1, || now) && !answers.is_awaited(0, || now));
        answers.came(1);
        assert!(!answers.is_awaited(1, || now));
        assert!(answers.expect(1, || now), "an answer in time begins no pause");
    }

    #[test]
    fn looks_in_vain_become_rare_until_an_answer_comes() {
        let (mut answers, now) = (Answers::new(1), Instant::now());
        for pause in [1, 2, 4, 8, 16, 32, 64, 128, 256, 256] {
            assert!(answers.expect(0, || now));
            assert!(!answers.is_awaited(0, || now + LENGTH));
            for _ in 0..pause {
                assert!(!answers.expect(0, || now), "a pause of {pause} deliveries");
            }
        }
        assert!(answers.expect(0, || now));
        answers.came(0);
        assert!(answers.expect(0, || now));
        assert!(!answers.is_awaited(0, || now + LENGTH));
        assert!(!answers.expect(0, || now) && answers.expect(0, || now), "the pauses begin anew");
    }

    #[test]
    fn frames_without_a_look_leave_a_pause_as_it_is() {
        let (mut answers, now) = (Answers::new(1), Instant::now());
        answers.expect(0, || now);
        assert!(!answers.is_awaited(0, || now + LENGTH));
        answers.came(0);
        assert!(!answers.expect(0, || now));
    }
}
