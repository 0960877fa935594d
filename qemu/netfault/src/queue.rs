//! The frames in a faulty link.

use crate::{Faults, ecn};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::AddAssign;

/// Counts of a link so far, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames passed to [`FaultQueue::push`].
    pub pushed: u64,
    /// Frames returned by [`FaultQueue::pop`], duplicates included.
    pub delivered: u64,
    /// Frames dropped at random.
    pub lost: u64,
    /// Frames queued a second time.
    pub duplicated: u64,
    /// Frames held back.
    pub reordered: u64,
    /// Frames with one bit inverted.
    pub corrupted: u64,
    /// Frames dropped because the queue of the link was full; not counted as lost.
    pub overflowed: u64,
    /// Frames marked as having met congestion.
    pub marked: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        let Self { pushed, delivered, lost, duplicated, reordered, corrupted, overflowed, marked } = other;
        self.pushed += pushed;
        self.delivered += delivered;
        self.lost += lost;
        self.duplicated += duplicated;
        self.reordered += reordered;
        self.corrupted += corrupted;
        self.overflowed += overflowed;
        self.marked += marked;
    }
}

/// The seed difference of the random numbers for marks, which are separate so that they do not shift the
/// choices of the faults.
const MARKS: u64 = 0xec4e_c4ec_4ec4_ec4e;

/// A link with faults: frames go in by [`push`](Self::push) and come out of [`pop`](Self::pop) when they are
/// due.
///
/// `M` is the owner's data about each frame, such as its receiver. The same pushes at the same times with the
/// same seed cause the same deliveries. Frames without a fault keep their order.
#[derive(Debug)]
pub struct FaultQueue<M> {
    faults: Faults,
    rng: Xoshiro256PlusPlus,
    marks: Xoshiro256PlusPlus,
    /// For each frame that waits for the link or is on it, the time at which its transmission ends.
    waiting: VecDeque<u64>,
    in_flight: BinaryHeap<Reverse<InFlight<M>>>,
    pushes: u64,
    counters: Counters,
}

/// One copy of a frame, ordered by the time it is due and then by the order of pushing.
#[derive(Debug)]
struct InFlight<M> {
    due: u64,
    number: u64,
    meta: M,
    frame: Vec<u8>,
}

impl<M> InFlight<M> {
    fn key(&self) -> (u64, u64) {
        (self.due, self.number)
    }
}

impl<M> PartialEq for InFlight<M> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<M> Eq for InFlight<M> {}

impl<M> PartialOrd for InFlight<M> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<M> Ord for InFlight<M> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<M: Clone> FaultQueue<M> {
    /// Makes an empty link. Each link of a network needs a seed of its own, or all links fail alike.
    #[must_use]
    pub fn new(faults: Faults, seed: u64) -> Self {
        Self {
            faults,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            marks: Xoshiro256PlusPlus::seed_from_u64(seed ^ MARKS),
            waiting: VecDeque::new(),
            in_flight: BinaryHeap::new(),
            pushes: 0,
            counters: Counters::default(),
        }
    }

    /// Changes the faults of frames pushed from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Adds a frame that enters the link at `now` (nanoseconds), and decides on its faults.
    ///
    /// Corruption spares frames that only the Ethernet check sequence protects (ARP): on a wire they are
    /// dropped if damaged, and here there is no check sequence. All others carry a checksum of their own.
    pub fn push(&mut self, meta: M, mut frame: Vec<u8>, now: u64) {
        self.counters.pushed += 1;
        // The number of draws is always the same, so that the probability of one fault does not shift the
        // choices of another.
        let [lost, dup, held, dup_held, corrupt] = std::array::from_fn(|_| draw(&mut self.rng));
        let (hold, dup_hold, bit) = (self.rng.next_u64(), self.rng.next_u64(), self.rng.next_u64());
        let by_chance = draw(&mut self.marks) < self.faults.ecn;
        let Some(link) = self.send(frame.len(), now) else {
            self.counters.overflowed += 1;
            return;
        };
        if (by_chance || link.queued >= self.faults.ecn_queue as usize) && ecn::mark(&mut frame) {
            self.counters.marked += 1;
        }
        let now = link.sent;
        if lost < self.faults.loss {
            self.counters.lost += 1;
            return;
        }
        let copy = (dup < self.faults.dup).then(|| frame.clone());
        if corrupt < self.faults.corrupt && !frame.is_empty() && !is_arp(&frame) {
            self.counters.corrupted += 1;
            let bit = usize::try_from(bit % (frame.len() as u64 * 8)).unwrap_or(0);
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        let due = self.due(now, held, hold);
        self.enqueue(due, meta.clone(), frame);
        if let Some(copy) = copy {
            self.counters.duplicated += 1;
            let due = self.due(now, dup_held, dup_hold);
            self.enqueue(due, meta, copy);
        }
    }

    /// Returns the next frame that is due at `now`, if there is one.
    pub fn pop(&mut self, now: u64) -> Option<(M, Vec<u8>)> {
        if self.next_deadline()? > now {
            return None;
        }
        let Reverse(next) = self.in_flight.pop()?;
        self.counters.delivered += 1;
        Some((next.meta, next.frame))
    }

    /// Returns the time at which the next frame is due, in nanoseconds; `None` if the link is empty.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.in_flight.peek().map(|Reverse(next)| next.due)
    }

    /// Returns the number of frames in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns true if no frame is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Returns the counts of the link so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Lets a frame of `len` bytes wait for the link and cross it. Returns `None` if the queue is full.
    fn send(&mut self, len: usize, now: u64) -> Option<Sent> {
        if self.faults.rate_bps == 0 {
            return Some(Sent { queued: 0, sent: now });
        }
        while self.waiting.front().is_some_and(|sent| *sent <= now) {
            self.waiting.pop_front();
        }
        let queued = self.waiting.len();
        if queued >= self.faults.queue as usize {
            return None;
        }
        let start = self.waiting.back().copied().unwrap_or(now);
        let bits = (len as u64 + ETHERNET_OVERHEAD) * 8;
        let sent = start.saturating_add(bits.saturating_mul(1_000_000_000) / self.faults.rate_bps);
        self.waiting.push_back(sent);
        Some(Sent { queued, sent })
    }

    fn enqueue(&mut self, due: u64, meta: M, frame: Vec<u8>) {
        self.in_flight.push(Reverse(InFlight { due, number: self.pushes, meta, frame }));
        self.pushes += 1;
    }

    /// Returns the time at which a copy arrives. `held` decides if it is held back, and `hold` the additional
    /// delay.
    fn due(&mut self, now: u64, held: f64, hold: u64) -> u64 {
        let on_time = now.saturating_add(self.faults.delay_ns);
        if held >= self.faults.reorder {
            return on_time;
        }
        self.counters.reordered += 1;
        on_time.saturating_add(1 + hold % self.faults.reorder_ns.max(1))
    }
}

/// The crossing of the link by a frame.
struct Sent {
    /// The number of frames that were in the queue before this one.
    queued: usize,
    /// The time at which the last bit of the frame was sent, in nanoseconds.
    sent: u64,
}

/// The bytes of a frame on an Ethernet wire in addition to those passed here: preamble, check sequence and
/// gap.
const ETHERNET_OVERHEAD: u64 = 24;

/// Returns a number from 0 up to but not including 1.
#[allow(clippy::cast_precision_loss, reason = "53 bits fit an f64 exactly")]
fn draw(rng: &mut Xoshiro256PlusPlus) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

fn is_arp(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[0x08, 0x06])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pushes `count` numbered frames, one every 10 us, and pops the due ones after each. Returns (time,
    /// number, intact) of each delivery.
    fn run(faults: &str, seed: u64, count: u32) -> (Vec<(u64, u32, bool)>, Counters) {
        let mut queue = FaultQueue::new(Faults::parse(faults).unwrap(), seed);
        let mut seen = Vec::new();
        let mut drain = |queue: &mut FaultQueue<u32>, until: u64| {
            while let Some(due) = queue.next_deadline().filter(|due| *due <= until) {
                while let Some((n, frame)) = queue.pop(due) {
                    seen.push((due, n, frame == numbered(n)));
                }
            }
        };
        for n in 0..count {
            let now = u64::from(n) * 10_000;
            drain(&mut queue, now);
            queue.push(n, numbered(n), now);
        }
        drain(&mut queue, u64::MAX);
        assert!(queue.is_empty());
        let counters = queue.counters();
        (seen, counters)
    }

    fn numbered(n: u32) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[14..18].copy_from_slice(&n.to_be_bytes());
        frame
    }

    #[test]
    fn a_perfect_link_changes_nothing() {
        let (seen, counters) = run("", 1, 100);
        assert!(seen.iter().enumerate().all(|(i, s)| *s == (i as u64 * 10_000, i as u32, true)));
        assert_eq!(counters, Counters { pushed: 100, delivered: 100, ..Counters::default() });
    }

    #[test]
    fn delay_shifts_all() {
        let (seen, _) = run("delay_us=50", 1, 100);
        assert!(seen.iter().enumerate().all(|(i, s)| *s == (i as u64 * 10_000 + 50_000, i as u32, true)));
    }

    #[test]
    fn a_rate_spaces_frames_and_a_full_queue_drops() {
        // 84 bytes on the wire at 672 Mbit/s: 1 us each.
        let mut queue = FaultQueue::new(Faults::parse("rate_mbit=672,queue=3,delay_us=2").unwrap(), 1);
        for n in 0..5 {
            queue.push(n, numbered(n), 0);
        }
        queue.push(5, numbered(5), 1_000);
        let mut seen = Vec::new();
        while let Some(due) = queue.next_deadline() {
            seen.extend(queue.pop(due).map(|(n, _)| (due, n)));
        }
        assert_eq!(seen, [(3_000, 0), (4_000, 1), (5_000, 2), (6_000, 5)]);
        assert_eq!(queue.counters().overflowed, 2);
    }

    #[test]
    fn marks_follow_the_queue_or_chance_and_shift_no_other_choice() {
        let capable = |n: u32| {
            let mut frame = numbered(n);
            frame[12..16].copy_from_slice(&[8, 0, 0x45, 2]);
            frame
        };
        let mut queue = FaultQueue::new(Faults::parse("rate_mbit=672,ecn_queue=2").unwrap(), 1);
        (0..5).for_each(|n| queue.push(n, capable(n), 0));
        let marked: Vec<_> =
            std::iter::from_fn(|| queue.pop(u64::MAX)).map(|(n, f)| (n, f[15] & 3 == 3)).collect();
        assert_eq!(marked, [(0, false), (1, false), (2, true), (3, true), (4, true)]);
        let fates = |faults: &str| {
            let mut queue = FaultQueue::new(Faults::parse(faults).unwrap(), 5);
            (0..1000).for_each(|n| queue.push(n, capable(n), 0));
            let order: Vec<_> = std::iter::from_fn(|| queue.pop(u64::MAX)).map(|(n, _)| n).collect();
            (order, queue.counters().marked)
        };
        let (order, marked) = fates("loss=0.2,reorder=0.2,ecn=0.3");
        assert_eq!(order, fates("loss=0.2,reorder=0.2").0);
        assert!((200..400).contains(&marked), "{marked}");
    }

    #[test]
    fn the_seed_decides() {
        let faults = "loss=0.1,dup=0.1,reorder=0.1,corrupt=0.1,delay_us=5";
        assert_eq!(run(faults, 7, 1000), run(faults, 7, 1000));
        assert_ne!(run(faults, 7, 1000), run(faults, 8, 1000));
    }

    #[test]
    fn frequencies_are_as_asked() {
        let (seen, c) = run("loss=0.1,dup=0.1,reorder=0.1,corrupt=0.1", 3, 20_000);
        // Binomial with n about 20,000 and p = 0.1: the standard deviation is 42, so 300 is beyond doubt.
        for (what, n) in
            [("lost", c.lost), ("dup", c.duplicated), ("reorder", c.reordered), ("corrupt", c.corrupted)]
        {
            assert!((1700..=2300).contains(&n), "{what}: {n}");
        }
        assert_eq!(c.delivered, c.pushed - c.lost + c.duplicated);
        assert_eq!(seen.iter().filter(|s| !s.2).count() as u64, c.corrupted);
        assert!(seen.windows(2).any(|w| w[1].1 < w[0].1), "nothing was overtaken");
    }

    #[test]
    fn arp_is_not_corrupted() {
        let mut queue = FaultQueue::new(Faults::parse("corrupt=1").unwrap(), 1);
        let mut arp = vec![0; 42];
        arp[12..14].copy_from_slice(&[8, 6]);
        queue.push((), arp.clone(), 0);
        assert_eq!(queue.pop(0), Some(((), arp)));
    }

    proptest! {
        #[test]
        fn corruption_inverts_one_bit(seed: u64, frame in proptest::collection::vec(any::<u8>(), 1..200)) {
            prop_assume!(!is_arp(&frame));
            let mut queue = FaultQueue::new(Faults::parse("corrupt=1").unwrap(), seed);
            queue.push((), frame.clone(), 0);
            let (_, got) = queue.pop(0).unwrap();
            let inverted: u32 = frame.iter().zip(&got).map(|(a, b)| (a ^ b).count_ones()).sum();
            prop_assert_eq!((got.len(), inverted), (frame.len(), 1));
        }
    }
}
