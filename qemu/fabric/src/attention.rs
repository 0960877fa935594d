//! Attention: the time after many frames in which the rings of all machines are looked at without a kick.
//!
//! A kick costs a machine several microseconds, and wakes the thread. While frames come in a stream, the
//! thread therefore looks at the rings by itself, if the machines leave a processor to it. Between two sleeps
//! of the thread a ping-pong has too few frames for that. Its frames are looked for one at a time
//! ([`Answer`](crate::answer::Answer)); as long as each comes in time the thread does not sleep, and they may
//! begin the attention, too.

use std::time::{Duration, Instant};

/// The length of the attention after many frames.
const LENGTH: Duration = Duration::from_micros(50);
/// The number of frames that begin the attention, or prolong it: more than several ping-pongs have in that
/// time.
const MANY: usize = 12;
/// The processors that the fabric's thread and everything else need beside those of the machines.
const OTHERS: usize = 2;

/// The state of the attention.
#[derive(Debug)]
pub(crate) struct Attention {
    processors: usize,
    machines: usize,
    until: Option<Instant>,
    /// The frames since the thread last slept, or since they prolonged the attention.
    frames: usize,
}

impl Attention {
    /// Returns no attention, on the processors that this process may use.
    pub(crate) fn new() -> Self {
        Self::on(std::thread::available_parallelism().map_or(1, usize::from))
    }

    const fn on(processors: usize) -> Self {
        Self { processors, machines: 0, until: None, frames: 0 }
    }

    /// Sets the number of machines that share their memory. Each is assumed to use one processor.
    pub(crate) const fn set_machines(&mut self, machines: usize) {
        self.machines = machines;
    }

    /// Records frames that a machine sent.
    pub(crate) fn note(&mut self, frames: usize, now: impl FnOnce() -> Instant) {
        self.frames += frames;
        if self.frames >= MANY && self.processors >= self.machines + OTHERS {
            self.frames = 0;
            self.until = Some(now() + LENGTH);
        }
    }

    /// Returns true while rings are looked at without a kick.
    pub(crate) fn is_paid(&self, now: impl FnOnce() -> Instant) -> bool {
        self.until.is_some_and(|until| now() < until)
    }

    /// Ends the attention, because the thread is about to sleep.
    pub(crate) const fn end(&mut self) {
        self.frames = 0;
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_frames_begin_it_and_time_ends_it() {
        let (mut attention, begun) = (Attention::on(4), Instant::now());
        attention.set_machines(2);
        attention.note(MANY - 1, || begun);
        assert!(!attention.is_paid(|| begun));
        attention.note(1, || begun);
        assert!(attention.is_paid(|| begun) && !attention.is_paid(|| begun + LENGTH));
        attention.note(MANY, || begun + LENGTH);
        assert!(attention.is_paid(|| begun + LENGTH));
        attention.end();
        assert!(!attention.is_paid(|| begun));
    }

    #[test]
    fn few_frames_between_sleeps_do_not_begin_it() {
        let (mut attention, now) = (Attention::on(4), Instant::now());
        for _ in 0..MANY {
            attention.note(MANY - 1, || now);
            attention.end();
        }
        assert!(!attention.is_paid(|| now));
    }

    #[test]
    fn machines_have_the_processors_first() {
        let now = Instant::now();
        for (processors, machines, expected) in [(4, 2, true), (3, 2, false), (4, 3, false), (2, 0, true)] {
            let mut attention = Attention::on(processors);
            attention.set_machines(machines);
            attention.note(MANY, || now);
            assert_eq!(attention.is_paid(|| now), expected, "{processors} processors, {machines} machines");
        }
    }
}
