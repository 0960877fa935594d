//! The timers of the requester.
//!
//! Two timers run since the last progress. The **acknowledgement timeout** is that of the specification
//! (9.7.6.1.3): the requester goes back. It counts against the retries and doubles each time, so that a peer
//! whose processor is away for a while is not given up: with 30 ms and 7 retries it takes 7.65 s. The
//! **probe** is earlier and adapts to the round trip: it repeats one packet and does not count as a retry, so
//! that a lost last packet or a lost response costs little more than a round trip, and a slow peer costs one
//! packet. It is never earlier than [`MIN_PROBE`]: virtual machines lose their processor for longer than a
//! network loses a packet.

use core::time::Duration;
use platform::Instant;

/// The minimum time before a probe, and the time before the first round trip is measured, in nanoseconds.
const MIN_PROBE: u64 = 500_000;
const FIRST_PROBE: u64 = 2_000_000;
/// The maximum number of doublings, which suffices for the maximum number of retries in verbs.
const MAX_DOUBLINGS: u32 = 7;

/// Returns the instant `nanoseconds` later.
pub(super) const fn after(now: Instant, nanoseconds: u64) -> Instant {
    Instant::from_nanos(now.as_nanos().saturating_add(nanoseconds))
}

/// The event whose time has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    /// No event is due.
    Nothing,
    /// One unacknowledged packet must be sent again.
    Probe,
    /// All unacknowledged packets must be sent again.
    GoBack,
    /// All retries have been used up: the queue pair fails.
    GiveUp,
}

/// The two timers of a requester: one for a probe, one for sending everything again.
pub(super) struct Timers {
    /// The acknowledgement timeout in nanoseconds. Each acknowledgement starts the timers, and a `Duration`
    /// has to be divided and multiplied for that.
    ack_timeout: u64,
    retries: u8,
    retries_left: u8,
    /// The number of probes since a round trip was last measured (RFC 6298, 5.7: a backed-off timeout stays
    /// until then).
    probes: u32,
    go_back_at: Instant,
    probe_at: Instant,
    /// The time of the next check, not later than the two timers. Progress only moves the timers, and this
    /// field follows when it has passed. So the owner of the deadlines of many queue pairs has no change at
    /// each acknowledgement.
    check_at: Option<Instant>,
}

impl Timers {
    pub(super) const fn new() -> Self {
        Self {
            ack_timeout: 0,
            retries: 0,
            retries_left: 0,
            probes: 0,
            go_back_at: Instant::MAX,
            probe_at: Instant::MAX,
            check_at: None,
        }
    }

    pub(super) fn connect(&mut self, ack_timeout: Duration, retries: u8) {
        self.ack_timeout = u64::try_from(ack_timeout.as_nanos()).unwrap_or(u64::MAX);
        self.retries = retries;
        self.retries_left = retries;
    }

    /// Returns the time at which [`due`](Self::due) must be called.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.check_at
    }

    pub(super) const fn running(&self) -> bool {
        self.check_at.is_some()
    }

    /// Starts both timers. `timeout` is the time in nanoseconds that a round trip rarely exceeds, if it is
    /// known.
    pub(super) fn start(&mut self, now: Instant, timeout: Option<u64>) {
        self.go_back_at = after(now, self.current_timeout());
        self.probe_at = after(now, self.probe_after(timeout));
        let earlier = self.go_back_at.min(self.probe_at);
        self.check_at = Some(self.check_at.map_or(earlier, |at| at.min(earlier)));
    }

    pub(super) const fn stop(&mut self) {
        self.check_at = None;
    }

    /// Restores all retries, because the peer has acknowledged something.
    pub(super) const fn progress(&mut self) {
        self.retries_left = self.retries;
    }

    /// Records that a round trip was measured.
    pub(super) const fn measured(&mut self) {
        self.probes = 0;
    }

    /// Moves the next probe to `at`, if that is earlier.
    pub(super) fn hasten(&mut self, at: Instant) {
        self.probe_at = self.probe_at.min(at);
        self.check_at = self.check_at.map(|check_at| check_at.min(at));
    }

    /// Returns the event that is due at `now`, and restarts its timer.
    pub(super) fn due(&mut self, now: Instant, timeout: Option<u64>) -> Due {
        if self.check_at.is_none_or(|at| now < at) {
            return Due::Nothing;
        }
        let due = if now >= self.go_back_at {
            match self.retries_left.checked_sub(1) {
                Some(left) => self.retries_left = left,
                None => return Due::GiveUp,
            }
            self.go_back_at = after(now, self.current_timeout());
            Due::GoBack
        } else if now >= self.probe_at {
            self.probes += 1;
            self.probe_at = after(now, self.probe_after(timeout));
            Due::Probe
        } else {
            Due::Nothing
        };
        self.check_at = Some(self.go_back_at.min(self.probe_at));
        due
    }

    /// Returns the acknowledgement timeout, which doubles after each timeout since the last progress.
    fn current_timeout(&self) -> u64 {
        let timeouts = u32::from(self.retries - self.retries_left);
        self.ack_timeout.saturating_mul(1 << timeouts.min(MAX_DOUBLINGS))
    }

    fn probe_after(&self, timeout: Option<u64>) -> u64 {
        let once = timeout.unwrap_or(FIRST_PROBE).max(MIN_PROBE);
        once.saturating_mul(1 << self.probes.min(2 * MAX_DOUBLINGS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const MS: Duration = Duration::from_millis(1);

    /// Returns all events until no retry is left, with their times in milliseconds.
    fn silence(timers: &mut Timers, timeout: Option<u64>) -> Vec<(u64, Due)> {
        let mut all = Vec::new();
        loop {
            let now = timers.deadline().unwrap();
            let due = timers.due(now, timeout);
            all.push((now.as_nanos() / 1_000_000, due));
            if due == Due::GiveUp {
                return all;
            }
        }
    }

    #[test]
    fn retries_determine_the_total_time_whatever_the_probes() {
        for timeout in [None, Some(50_000), Some(1_000_000_000)] {
            let mut timers = Timers::new();
            timers.connect(30 * MS, 7);
            timers.start(Instant::ZERO, timeout);
            let all = silence(&mut timers, timeout);
            let backs: Vec<_> = all.iter().filter(|(_, due)| *due != Due::Probe).map(|(at, _)| *at).collect();
            assert_eq!(backs, [30, 90, 210, 450, 930, 1890, 3810, 7650]);
        }
    }

    #[test]
    fn probes_are_early_and_grow_rarer() {
        let mut timers = Timers::new();
        timers.connect(30 * MS, 7);
        timers.start(Instant::ZERO, Some(50_000));
        let all = silence(&mut timers, Some(50_000));
        let probes: Vec<_> = all.iter().filter(|(_, due)| *due == Due::Probe).map(|(at, _)| *at).collect();
        assert_eq!(probes[..6], [0, 1, 3, 7, 15, 31]);
        assert!(probes.len() <= 14, "{probes:?}");
    }

    #[test]
    fn progress_moves_the_clocks_but_not_the_deadline() {
        let mut timers = Timers::new();
        timers.connect(30 * MS, 7);
        timers.start(Instant::ZERO, None);
        let deadline = timers.deadline();
        assert_eq!(deadline, Some(Instant::ZERO + 2 * MS));
        timers.progress();
        timers.start(Instant::ZERO + MS, None);
        assert_eq!(timers.deadline(), deadline);
        assert_eq!(timers.due(Instant::ZERO + 2 * MS, None), Due::Nothing);
        assert_eq!(timers.deadline(), Some(Instant::ZERO + 3 * MS));
        timers.hasten(Instant::ZERO + 2 * MS + MS / 2);
        assert_eq!(timers.due(Instant::ZERO + 2 * MS + MS / 2, None), Due::Probe);
        timers.stop();
        assert_eq!((timers.deadline(), timers.due(Instant::MAX, None)), (None, Due::Nothing));
    }
}
