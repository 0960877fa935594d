//! The round trip of a connection: the estimates of RFC 6298, and the shortest round trip.
//!
//! Some packets that request an acknowledgement are timed, a few at once. Repeated packets are not (Karn),
//! because their response may belong to either transmission.

use core::time::Duration;
use platform::Instant;
use verbs::Psn;

/// The number of packets timed at once.
const TIMED: usize = 8;
/// The time for which the shortest round trip is valid: two spans of this length are kept, and the older one
/// is dropped.
const SPAN: Duration = Duration::from_secs(5);

/// A timed packet in flight.
#[derive(Clone, Copy)]
struct Timed {
    /// The PSN up to which an acknowledgement must cover to acknowledge the timed packet.
    end: Psn,
    sent: Instant,
}

/// The estimator. Times are in nanoseconds.
pub(super) struct Rtt {
    /// The mean and the mean deviation; both are 0 before the first sample.
    smoothed: u64,
    variation: u64,
    /// The shortest round trips: of the measuring period that lasts until `span_ends`, and of the one before.
    least: [u64; 2],
    span_ends: Instant,
    /// A ring of `len` packets from `first` on, in PSN order.
    timed: [Timed; TIMED],
    first: usize,
    len: usize,
}

impl Rtt {
    pub(super) const fn new() -> Self {
        Self {
            smoothed: 0,
            variation: 0,
            least: [u64::MAX; 2],
            span_ends: Instant::ZERO,
            timed: [Timed { end: Psn::new(0), sent: Instant::ZERO }; TIMED],
            first: 0,
            len: 0,
        }
    }

    /// Starts to time a packet that requests a response and is sent for the first time. `end` is one past the
    /// PSN that the first response acknowledges.
    pub(super) fn time(&mut self, end: Psn, now: Instant) {
        if self.len < TIMED
            && let Some(place) = self.timed.get_mut((self.first + self.len) % TIMED)
        {
            *place = Timed { end, sent: now };
            self.len += 1;
        }
    }

    /// Stops timing all packets, because they may be repeated.
    pub(super) const fn forget(&mut self) {
        self.len = 0;
    }

    /// Stops timing the packets before `end`, which are repeated.
    pub(super) fn forget_before(&mut self, end: Psn) {
        while self.oldest().is_some_and(|timed| end.distance_from(timed.end) >= 0) {
            self.drop_oldest();
        }
    }

    /// Records that everything before `una` is acknowledged. Takes the newest timed packet in it as a sample,
    /// and returns that.
    pub(super) fn acknowledged(&mut self, una: Psn, now: Instant) -> Option<u64> {
        let mut newest = None;
        while let Some(timed) = self.oldest().filter(|timed| una.distance_from(timed.end) >= 0) {
            newest = Some(timed.sent);
            self.drop_oldest();
        }
        let sample = now.as_nanos().saturating_sub(newest?.as_nanos()).max(1);
        self.sample(sample, now);
        Some(sample)
    }

    fn oldest(&self) -> Option<Timed> {
        if self.len == 0 { None } else { self.timed.get(self.first).copied() }
    }

    const fn drop_oldest(&mut self) {
        self.first = (self.first + 1) % TIMED;
        self.len -= 1;
    }

    fn sample(&mut self, sample: u64, now: Instant) {
        if self.smoothed == 0 {
            (self.smoothed, self.variation) = (sample, sample / 2);
        } else {
            self.variation = (3 * self.variation + self.smoothed.abs_diff(sample)) / 4;
            self.smoothed = (7 * self.smoothed + sample) / 8;
        }
        if now >= self.span_ends {
            self.span_ends = now + SPAN;
            self.least = [u64::MAX, self.least[0]];
        }
        self.least[0] = self.least[0].min(sample);
    }

    /// Returns the shortest round trip of the last 5 to 10 seconds in nanoseconds; `None` before the first
    /// sample.
    pub(super) const fn least(&self) -> Option<u64> {
        let [a, b] = self.least;
        let least = if a < b { a } else { b };
        if least == u64::MAX { None } else { Some(least) }
    }

    /// Returns the time in nanoseconds that responses rarely exceed (RFC 6298, but at least twice the mean);
    /// `None` before the first sample.
    pub(super) fn timeout(&self) -> Option<u64> {
        (self.smoothed > 0).then(|| self.smoothed + (4 * self.variation).max(self.smoothed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    #[test]
    fn estimates_as_rfc_6298_says() {
        let mut rtt = Rtt::new();
        assert_eq!((rtt.timeout(), rtt.least()), (None, None));
        rtt.time(Psn::new(1), at(0));
        assert_eq!(rtt.acknowledged(Psn::new(1), at(100)), Some(100_000));
        // R + 4 * R/2.
        assert_eq!(rtt.timeout(), Some(300_000));
        rtt.time(Psn::new(2), at(100));
        rtt.acknowledged(Psn::new(2), at(400));
        // Variation 3/4 * 50 + 1/4 * 200 = 87.5, mean 7/8 * 100 + 1/8 * 300 = 125.
        assert_eq!(rtt.timeout(), Some(125_000 + 350_000));
        assert_eq!(rtt.least(), Some(100_000));
    }

    #[test]
    fn one_answer_to_several_counts_for_the_newest() {
        let mut rtt = Rtt::new();
        for n in 0..20 {
            rtt.time(Psn::new(0xff_fffe + n), at(u64::from(n)));
        }
        assert_eq!(rtt.acknowledged(Psn::new(3), at(10)), Some(5_000), "over the wrap");
        assert_eq!(rtt.acknowledged(Psn::new(3), at(11)), None);
        assert_eq!(rtt.acknowledged(Psn::new(20), at(12)), Some(5_000), "the eighth was timed last");
    }

    #[test]
    fn what_is_sent_again_is_not_timed() {
        let mut rtt = Rtt::new();
        rtt.time(Psn::new(5), at(0));
        rtt.time(Psn::new(6), at(1));
        rtt.forget_before(Psn::new(5));
        assert_eq!(rtt.acknowledged(Psn::new(5), at(9)), None);
        assert_eq!(rtt.acknowledged(Psn::new(6), at(9)), Some(8_000));
        rtt.time(Psn::new(7), at(9));
        rtt.forget();
        assert_eq!(rtt.acknowledged(Psn::new(7), at(10)), None);
    }

    #[test]
    fn an_old_least_is_forgotten() {
        let mut rtt = Rtt::new();
        for second in 0..12u64 {
            let us = if second == 0 { 50 } else { 200 };
            rtt.time(Psn::new(second as u32), at(second * 1_000_000));
            rtt.acknowledged(Psn::new(second as u32), at(second * 1_000_000 + us));
        }
        assert_eq!(rtt.least(), Some(200_000));
    }
}
