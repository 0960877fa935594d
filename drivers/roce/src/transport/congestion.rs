//! The number of packets that may be in flight: a window that adapts to the capacity of the path.
//!
//! It grows while packets are acknowledged: it doubles per round trip at first, then grows by one packet per
//! round trip, and faster again after some rounds without trouble. Three events shrink it, at most once per
//! round trip:
//!
//! - A **congestion mark**: a CNP, or a READ response that arrives marked. As in DCQCN (Zhu and others,
//!   SIGCOMM 2015) and DCTCP (RFC 8257), the cut is half of the recent share of marked rounds, so that rare
//!   marks cost little, and steady ones settle where the queue is short.
//! - A **loss**. If packets wait in queues, which the round trip reveals, a queue has probably overflowed;
//!   and going back N costs more than necessary, because the waiting packets are lost too. The window is
//!   halved. Otherwise the loss was probably random, and the cut is an eighth. So the window of a lossy path
//!   stays near its capacity.
//! - A **timeout**: everything may be lost, and the window starts again.

/// The minimum of the window, in packets. With a single packet, nothing would follow a lost packet and reveal
/// the gap.
const MIN: u32 = 2;
/// The window of a new connection, in packets.
const FIRST: u32 = 16;
/// The number of rounds without trouble after which growth accelerates by a packet per round, and the fastest
/// growth in packets per round.
const CALM_ROUNDS: u32 = 5;
const FASTEST_GROWTH: u32 = 8;
/// The fixed-point unit of the share of marked rounds, and log2 of the inverse weight of a round (DCTCP's g =
/// 1/16).
const ALL_MARKED: u32 = 1 << 10;
const MARK_SHIFT: u32 = 4;

/// The window, in packets.
#[derive(Debug)]
pub(super) struct Window {
    packets: u32,
    max: u32,
    /// The most packets that may be in flight at present, however wide the window is.
    ceiling: u32,
    /// The window size, in packets, below which the window doubles per round.
    threshold: u32,
    /// Growth of less than a packet so far, in units of `1 / packets`.
    fraction: u32,
    /// The number of rounds since the last cut.
    calm: u32,
    /// The share of marked rounds, in units of 1 / [`ALL_MARKED`].
    alpha: u32,
    /// State of the present round: true if a mark arrived, true if the window was cut, and the shortest round
    /// trip in nanoseconds.
    marked: bool,
    cut: bool,
    least_rtt: Option<u64>,
    /// The shortest round trip of the last complete round, in nanoseconds.
    last_rtt: Option<u64>,
}

impl Window {
    /// Makes a window of at most `max` packets.
    pub(super) fn new(max: u32) -> Self {
        let max = max.max(MIN);
        Self {
            packets: FIRST.min(max),
            max,
            ceiling: u32::MAX,
            threshold: max,
            fraction: 0,
            calm: 0,
            alpha: ALL_MARKED,
            marked: false,
            cut: false,
            least_rtt: None,
            last_rtt: None,
        }
    }

    /// Returns the number of packets that may be in flight.
    pub(super) const fn packets(&self) -> u32 {
        if self.packets < self.ceiling { self.packets } else { self.ceiling }
    }

    /// Limits the packets in flight from now on, to at least one.
    pub(super) fn set_ceiling(&mut self, packets: u32) {
        self.ceiling = packets.max(1);
    }

    /// Grows after `packets` were acknowledged while the window was in use.
    pub(super) fn grow(&mut self, packets: u32) {
        if self.packets < self.threshold {
            self.packets = (self.packets + packets).min(self.threshold);
            return;
        }
        let speed = 1 + self.calm.saturating_sub(CALM_ROUNDS).min(FASTEST_GROWTH - 1);
        self.fraction += packets * speed;
        let whole = self.fraction / self.packets;
        self.fraction %= self.packets;
        self.packets = (self.packets + whole).min(self.max);
    }

    /// Records a round trip, in nanoseconds.
    pub(super) fn sample(&mut self, rtt: u64) {
        self.least_rtt = Some(self.least_rtt.map_or(rtt, |least| least.min(rtt)));
    }

    /// Ends a round: everything in flight at its start is acknowledged.
    pub(super) fn end_round(&mut self) {
        let target = if self.marked { ALL_MARKED } else { 0 };
        self.alpha = self.alpha - (self.alpha >> MARK_SHIFT) + (target >> MARK_SHIFT);
        self.calm = if self.cut { 0 } else { self.calm.saturating_add(1) };
        self.last_rtt = self.least_rtt.take().or(self.last_rtt);
        (self.marked, self.cut) = (false, false);
    }

    /// Shrinks because a switch has marked packets of this connection.
    pub(super) fn on_mark(&mut self) {
        self.marked = true;
        self.cut(|window| window.packets - (window.packets * window.alpha / (2 * ALL_MARKED)));
    }

    /// Shrinks because a packet was lost. `least` is the round trip of the empty path in nanoseconds, if it
    /// is known.
    pub(super) fn on_loss(&mut self, least: Option<u64>) {
        self.cut(|window| {
            let current = window.least_rtt.or(window.last_rtt);
            let empty =
                matches!((least, current), (Some(least), Some(current)) if current <= least + least / 4);
            let part = if empty { 8 } else { 2 };
            window.packets - window.packets.div_ceil(part)
        });
    }

    /// Starts again because no acknowledgement arrived for a long time.
    pub(super) fn on_timeout(&mut self) {
        self.threshold = (self.packets / 2).max(MIN);
        self.packets = MIN;
        self.fraction = 0;
        self.calm = 0;
    }

    fn cut(&mut self, to: impl FnOnce(&Self) -> u32) {
        if self.cut {
            return;
        }
        self.packets = to(self).max(MIN);
        self.threshold = self.packets;
        self.fraction = 0;
        self.calm = 0;
        self.cut = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{vec, vec::Vec};

    /// Simulates a round in which the whole window was acknowledged.
    fn round(window: &mut Window) {
        window.grow(window.packets());
        window.end_round();
    }

    #[test]
    fn growth_doubles_then_is_linear_then_accelerates() {
        let mut window = Window::new(64);
        let mut sizes = vec![window.packets()];
        for _ in 0..3 {
            round(&mut window);
            sizes.push(window.packets());
        }
        assert_eq!(sizes, [16, 32, 64, 64]);
        window.on_loss(None);
        assert_eq!(window.packets(), 32);
        window.end_round();
        let growth: Vec<_> = (0..10)
            .map(|_| {
                let before = window.packets();
                round(&mut window);
                window.packets() - before
            })
            .collect();
        assert_eq!(growth, [1, 1, 1, 1, 1, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_loss_costs_half_if_a_queue_shows_and_an_eighth_if_not() {
        // The shortest round trip, the present one, and the window afterwards.
        for (least, current, after) in [(100, 100, 56), (100, 125, 56), (100, 126, 32), (100, 50, 56)] {
            let mut window = Window::new(64);
            (0..3).for_each(|_| round(&mut window));
            window.sample(current + 500);
            window.sample(current);
            window.on_loss(Some(least));
            assert_eq!(window.packets(), after, "{current}");
            window.on_loss(Some(least));
            assert_eq!(window.packets(), after, "once a round");
        }
    }

    #[test]
    fn marks_cut_by_how_many_there_are() {
        let mut window = Window::new(64);
        round(&mut window);
        window.on_mark();
        assert_eq!(window.packets(), 17, "the first by nearly half");
        for _ in 0..200 {
            window.end_round();
        }
        (0..40).for_each(|_| round(&mut window));
        assert_eq!(window.packets(), 64);
        window.on_mark();
        assert!(window.packets() >= 62, "a rare one by little: {}", window.packets());
        for _ in 0..100 {
            window.end_round();
            window.on_mark();
        }
        assert_eq!(window.packets(), MIN);
    }

    #[test]
    fn a_timeout_starts_over() {
        let mut window = Window::new(64);
        (0..3).for_each(|_| round(&mut window));
        window.on_timeout();
        assert_eq!(window.packets(), MIN);
        (0..4).for_each(|_| round(&mut window));
        assert_eq!(window.packets(), 32);
        round(&mut window);
        assert_eq!(window.packets(), 33);
    }
}
